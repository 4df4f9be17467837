//! Where records are kept, as the command line says it.
//!
//! ```text
//! FOLDER            one file per volume        (without a cluster)
//! api:KUBECONFIG    the VolumeRecords of a cluster
//! ```
//!
//! Invariant: what is shown is read back as the same place.

use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr};

use super::{
    Record, RecordError, RecordStore, Revision,
    api::{ApiRecord, Cluster},
    file::FileRecord,
};

const API: &str = "api:";
/// Ends the path of a kubeconfig before the name of a volume, which has none.
const VOLUME: char = '#';

/// Where all records of a cluster are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Records {
    Folder(PathBuf),
    /// By the kubeconfig of the node.
    Api(PathBuf),
}

impl Records {
    pub fn of(&self, volume: &str) -> RecordPlace {
        match self {
            Records::Folder(folder) => RecordPlace::File(folder.join(format!("{volume}.record"))),
            Records::Api(kubeconfig) => {
                RecordPlace::Api { kubeconfig: kubeconfig.clone(), volume: volume.to_owned() }
            }
        }
    }
}

impl FromStr for Records {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Records, Infallible> {
        Ok(match text.strip_prefix(API) {
            Some(kubeconfig) => Records::Api(kubeconfig.into()),
            None => Records::Folder(text.into()),
        })
    }
}

/// Where the record of one volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordPlace {
    File(PathBuf),
    Api { kubeconfig: PathBuf, volume: String },
}

impl FromStr for RecordPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<RecordPlace, String> {
        let Some(place) = text.strip_prefix(API) else { return Ok(RecordPlace::File(text.into())) };
        let (kubeconfig, volume) =
            place.rsplit_once(VOLUME).ok_or_else(|| format!("{text} names no volume after {VOLUME}"))?;
        Ok(RecordPlace::Api { kubeconfig: kubeconfig.into(), volume: volume.to_owned() })
    }
}

impl fmt::Display for RecordPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordPlace::File(path) => path.display().fmt(f),
            RecordPlace::Api { kubeconfig, volume } => {
                write!(f, "{API}{}{VOLUME}{volume}", kubeconfig.display())
            }
        }
    }
}

impl From<PathBuf> for RecordPlace {
    fn from(path: PathBuf) -> RecordPlace {
        RecordPlace::File(path)
    }
}

impl RecordPlace {
    pub fn open(&self) -> Result<OpenRecord, RecordError> {
        Ok(match self {
            RecordPlace::File(path) => OpenRecord::File(FileRecord::at(path)),
            RecordPlace::Api { kubeconfig, volume } => {
                OpenRecord::Api(Box::new(Cluster::of(kubeconfig)?.record(volume)))
            }
        })
    }
}

/// A record, wherever it is.
#[derive(Debug)]
pub enum OpenRecord {
    File(FileRecord),
    Api(Box<ApiRecord>),
}

impl RecordStore for OpenRecord {
    fn read(&mut self) -> Result<(Revision, Record), RecordError> {
        match self {
            OpenRecord::File(file) => file.read(),
            OpenRecord::Api(api) => api.read(),
        }
    }

    fn swap(&mut self, seen: &Revision, record: &Record) -> Result<bool, RecordError> {
        match self {
            OpenRecord::File(file) => file.swap(seen, record),
            OpenRecord::Api(api) => api.swap(seen, record),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_back() {
        for (records, shown) in
            [("/a/records", "/a/records/vol-1.record"), ("api:/a/kube#config", "api:/a/kube#config#vol-1")]
        {
            let place = records.parse::<Records>().unwrap().of("vol-1");
            assert_eq!(place.to_string(), shown);
            assert_eq!(shown.parse(), Ok(place));
        }
        assert!("api:/a/kubeconfig".parse::<RecordPlace>().is_err());
    }
}
