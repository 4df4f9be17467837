//! Where a backup is, as a URL: `file:///FOLDER?backup=NAME&volume=VOLUME`.
//!
//! The invariant: what is written is read back as the same place.

use std::fmt;

/// A folder that holds backups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Folder(String);

/// One backup in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub folder: Folder,
    pub volume: String,
    pub backup: String,
}

/// Why a text says no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPlace {
    #[error("{0:?} is no folder; say file:///FOLDER, since backups go to folders only")]
    NoFolder(String),
    #[error("{0:?} names no backup; take status.url of a Backup: file:///FOLDER?backup=NAME&volume=VOLUME")]
    NoBackup(String),
}

impl Folder {
    /// Reads the URL of a backup target.
    pub fn parse(url: &str) -> Result<Folder, BadPlace> {
        let bad = || BadPlace::NoFolder(url.to_owned());
        let path = url.strip_prefix("file://").filter(|path| path.starts_with('/')).ok_or_else(bad)?;
        let is_plain =
            !path.contains(['?', '#', '%']) && path.split('/').all(|part| part != ".." && part != ".");
        is_plain
            .then(|| Folder(path.trim_end_matches('/').to_owned()))
            .filter(|folder| !folder.0.is_empty())
            .ok_or_else(bad)
    }

    /// From the root on.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file://{}", self.0)
    }
}

impl Place {
    /// Reads the URL of a backup.
    pub fn parse(url: &str) -> Result<Place, BadPlace> {
        let bad = || BadPlace::NoBackup(url.to_owned());
        let (folder, query) = url.split_once('?').ok_or_else(bad)?;
        let folder = Folder::parse(folder)?;
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let found = pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
            found.filter(|value| !value.is_empty()).ok_or_else(bad)
        };
        Ok(Place { backup: value("backup")?, volume: value("volume")?, folder })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?backup={}&volume={}", self.folder, self.backup, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_are_places() {
        #[rustfmt::skip]
        let cases = [
            ("file:///backups",        Some("/backups")),
            ("file:///backups/site/",  Some("/backups/site")),
            ("file:///",               None),
            ("file://backups",         None),
            ("file:///backups/../etc", None),
            ("file:///backups?a=b",    None),
            ("s3://bucket@region/",    None),
            ("",                       None),
        ];
        for (url, path) in cases {
            assert_eq!(Folder::parse(url).ok().as_ref().map(Folder::path), path, "{url}");
        }
    }

    #[test]
    fn a_backup_is_found_again_by_its_url() {
        let url = "file:///backups?backup=monday&volume=vol-1";
        assert_eq!(Place::parse(url).unwrap().to_string(), url);
        let turned = Place::parse("file:///backups?volume=vol-1&backup=monday").unwrap();
        assert_eq!(turned.to_string(), url);
        for bad in
            ["file:///backups", "file:///backups?backup=monday", "file:///backups?backup=&volume=v", "monday"]
        {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }
}
