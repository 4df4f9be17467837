//! Finds migrations that anybody on the machine could have written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::manifest::FILE;
use super::{Migration, Work};

const BY_OTHERS: u32 = 0o002;

/// What to know of a migration where every user of the machine may write to the folder of the search path, to its own,
/// or to its manifest.
pub(crate) fn exposed(migration: &Migration) -> Option<String> {
    let Work::Folder(manifest) = &migration.work else { return None };
    let folder = &manifest.folder;
    let mut places =
        folder.parent().into_iter().map(PathBuf::from).chain([folder.clone(), folder.join(FILE)]);
    let writable =
        |place: &PathBuf| fs::metadata(place).is_ok_and(|found| found.permissions().mode() & BY_OTHERS != 0);
    let place = places.find(writable)?;
    Some(format!(
        "{} may be written by every user of this machine, and so may what is run here",
        place.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    #[test]
    fn a_place_that_others_may_write_to_is_named() {
        let path = tempfile::tempdir().unwrap();
        let folder = path.path().join("one");
        fs::create_dir(&folder).unwrap();
        let text = "id = 'a'\nrelease = 'r'\ndescription = ''\nproposed_at = '2018-01-01T00:00:00Z'\n\
                    tables = ['lport']\n[jq]\nlport = '.'\n";
        fs::write(folder.join(FILE), text).unwrap();
        let found = || exposed(&load(&[path.path().to_owned()], &[]).unwrap()[0]);
        for place in [path.path().to_owned(), folder.clone(), folder.join(FILE)] {
            let mode = |bits| fs::set_permissions(&place, fs::Permissions::from_mode(bits)).unwrap();
            mode(0o755);
            assert_eq!(found(), None, "{}", place.display());
            mode(0o777);
            let told = found().unwrap_or_default();
            assert!(told.starts_with(&format!("{} may be written", place.display())), "{told}");
            mode(0o755);
        }
    }
}
