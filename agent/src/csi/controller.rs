//! The calls about volumes that are made on demand: each is a folder of a dataset.
//!
//! Invariant: nothing is remembered here. A volume's id names its dataset, and the dataset's folder
//! holds what is known of the volume; so any process on any node can answer.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client, ResourceExt, api::ListParams};
use midflight_api::fluid::{DRIVER, Dataset, volume_name};
use midflight_plan::mount::dataset::digest;
use tonic::{Request, Response, Status, async_trait};

use super::{
    cluster::answered,
    node::aside,
    proto::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
        CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
        ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
        ValidateVolumeCapabilitiesResponse, Volume, VolumeCapability,
        controller_server::Controller,
        controller_service_capability::{Rpc, Type, rpc},
        list_volumes_response::Entry,
        validate_volume_capabilities_response::Confirmed,
    },
    rooms::{FOLDER, Room, Rooms},
    volume::{VolumeId, check, on_node},
};

/// Parameters of a storage class that name the dataset.
const NAMESPACE: &str = "runtime_namespace";
const NAME: &str = "runtime_name";
/// Size of a volume for which none was asked.
const DEFAULT_BYTES: i64 = 1 << 30;
/// Begins the token with which a list goes on; a volume's id follows.
const AFTER: &str = "after:";

/// A volume that was made on demand; its id is `NAMESPACE.DATASET.KEY`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Made {
    namespace: String,
    dataset: String,
    key: String,
}

impl Made {
    fn new(namespace: &str, dataset: &str, name: &str) -> Result<Made, Status> {
        let made = Made { namespace: namespace.into(), dataset: dataset.into(), key: digest(name) };
        VolumeId::new(&made.id()).map(|_| made)
    }

    /// Nothing where the id is not one of ours.
    fn read(id: &str) -> Result<Option<Made>, Status> {
        VolumeId::new(id)?;
        let parts =
            id.split_once('.').and_then(|(namespace, rest)| Some((namespace, rest.rsplit_once('.')?)));
        let is_key =
            |key: &str| key.len() == digest("").len() && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(match parts {
            Some((namespace, (dataset, key))) if is_key(key) => {
                Some(Made { namespace: namespace.into(), dataset: dataset.into(), key: key.into() })
            }
            _ => None,
        })
    }

    fn id(&self) -> String {
        format!("{}.{}.{}", self.namespace, self.dataset, self.key)
    }

    /// Where in the dataset it is.
    fn sub_path(&self) -> String {
        format!("{FOLDER}/{}", self.key)
    }
}

#[derive(Clone)]
pub(super) struct ControllerService {
    client: Client,
    /// Folder that the paths of this node are in.
    root: PathBuf,
}

impl ControllerService {
    pub(super) fn new(client: Client, root: PathBuf) -> ControllerService {
        ControllerService { client, root }
    }

    /// Where the data of a dataset is on this machine, if it is a folder.
    fn place(&self, dataset: &Dataset) -> Option<PathBuf> {
        dataset.folder().ok().map(|folder| on_node(&self.root, Path::new(folder)))
    }

    async fn dataset(&self, namespace: &str, name: &str) -> Result<Option<Dataset>, Status> {
        let datasets: Api<Dataset> = Api::namespaced(self.client.clone(), namespace);
        answered("read the dataset", datasets.get_opt(name)).await
    }

    /// The folder of the dataset that a volume is in; none if dataset or folder are gone.
    async fn folder(&self, made: &Made) -> Result<Option<PathBuf>, Status> {
        let dataset = self.dataset(&made.namespace, &made.dataset).await?;
        Ok(dataset.and_then(|dataset| self.place(&dataset)))
    }

    /// What nodes must know of the dataset's daemon.
    async fn context(&self, made: &Made) -> Result<HashMap<String, String>, Status> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let name = volume_name(&made.namespace, &made.dataset);
        let volume = answered("read the dataset's volume", volumes.get_opt(&name)).await?;
        let source = volume.and_then(|volume| volume.spec?.csi).filter(|source| source.driver == DRIVER);
        let attributes: BTreeMap<String, String> =
            source.and_then(|source| source.volume_attributes).unwrap_or_default();
        if attributes.get(NAMESPACE) != Some(&made.namespace) || attributes.get(NAME) != Some(&made.dataset) {
            return Err(Status::unavailable(format!("the dataset has no volume {name} yet")));
        }
        Ok(attributes.into_iter().chain([("fluid_sub_path".to_owned(), made.sub_path())]).collect())
    }

    /// A volume that was made, and where.
    async fn find(&self, id: &str) -> Result<(Made, PathBuf, Room), Status> {
        let unknown = || Status::not_found(format!("there is no volume {id}"));
        let made = Made::read(id)?.ok_or_else(unknown)?;
        let folder = self.folder(&made).await?.ok_or_else(unknown)?;
        let (at, key) = (folder.clone(), made.key.clone());
        let room = aside("look for the volume", move || match Rooms::open(&at)? {
            Some(rooms) => rooms.get(&key),
            None => Ok(None),
        });
        let room = room.await?.ok_or_else(unknown)?;
        Ok((made, folder, room))
    }
}

/// What is asked of a volume's size: at least, and at most.
fn sizes(range: Option<&CapacityRange>) -> Result<(i64, i64), Status> {
    let least = range.map_or(0, |range| range.required_bytes);
    let most = range.map_or(0, |range| range.limit_bytes);
    match (least, most) {
        (least, most) if least < 0 || most < 0 => Err(Status::invalid_argument("a size is negative")),
        (least, 0) => Ok((least, i64::MAX)),
        (least, most) if least > most => Err(Status::out_of_range("required_bytes is above limit_bytes")),
        sizes => Ok(sizes),
    }
}

fn check_all(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    capabilities.iter().try_for_each(|capability| check(Some(capability)).map(drop))
}

/// Makes a room, or finds the one that was made for the same request.
fn make(
    folder: &Path,
    key: &str,
    wanted: &Room,
    (least, most): (i64, i64),
) -> io::Result<Result<Room, Status>> {
    let rooms = Rooms::make(folder)?;
    let room = match rooms.get(key)? {
        Some(there) if there.name == wanted.name && (least..=most).contains(&there.bytes) => there,
        Some(_) => return Ok(Err(Status::already_exists("there is a volume of that name and another size"))),
        None => wanted.clone(),
    };
    rooms.put(key, &room)?;
    Ok(Ok(room))
}

#[async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Status::invalid_argument("name is missing"));
        }
        check_all(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument(
                "volumes begin empty: there are no snapshots and no clones",
            ));
        }
        let sizes = sizes(request.capacity_range.as_ref())?;
        let parameter = |key: &str| {
            let value = request.parameters.get(key).filter(|value| !value.is_empty());
            value.ok_or_else(|| {
                Status::invalid_argument(format!("parameters have no {key}, which names the dataset"))
            })
        };
        let (namespace, name) = (parameter(NAMESPACE)?, parameter(NAME)?);
        let made = Made::new(namespace, name, &request.name)?;
        let dataset = self.dataset(namespace, name).await?;
        let dataset = dataset
            .ok_or_else(|| Status::invalid_argument(format!("there is no dataset {namespace}/{name}")))?;
        if dataset.is_read_only() {
            return Err(Status::invalid_argument("the dataset cannot be written"));
        }
        let folder = self
            .place(&dataset)
            .ok_or_else(|| Status::invalid_argument("the dataset is no folder of the nodes"))?;
        let volume_context = self.context(&made).await?;
        let bytes = sizes.0.max(DEFAULT_BYTES.min(sizes.1));
        let (key, wanted) = (made.key.clone(), Room { name: request.name, bytes });
        let room = aside("make the volume", move || make(&folder, &key, &wanted, sizes)).await??;
        let volume = Volume { capacity_bytes: room.bytes, volume_id: made.id(), volume_context };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let Some(made) = Made::read(&id)? else { return Ok(Response::new(DeleteVolumeResponse {})) };
        if let Some(folder) = self.folder(&made).await? {
            aside("remove the volume", move || match Rooms::open(&folder)? {
                Some(rooms) => rooms.remove(&made.key),
                None => Ok(()),
            })
            .await?;
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        VolumeId::new(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities are missing"));
        }
        self.find(&request.volume_id).await?;
        let answer = match check_all(&request.volume_capabilities) {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                }),
                message: String::new(),
            },
            Err(why) => {
                ValidateVolumeCapabilitiesResponse { confirmed: None, message: why.message().to_owned() }
            }
        };
        Ok(Response::new(answer))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let most = usize::try_from(request.max_entries);
        let most = most.map_err(|_| Status::invalid_argument("max_entries is negative"))?;
        let after = match request.starting_token.as_str() {
            "" => None,
            token => {
                let id =
                    token.strip_prefix(AFTER).ok_or_else(|| Status::aborted("unknown starting_token"))?;
                Some(id.to_owned())
            }
        };
        let datasets: Api<Dataset> = Api::all(self.client.clone());
        let datasets = answered("list the datasets", datasets.list(&ListParams::default())).await?;
        let places: Vec<_> =
            datasets.iter().filter_map(|dataset| Some((dataset.clone(), self.place(dataset)?))).collect();
        let mut all = aside("list the volumes", move || {
            let mut all = Vec::new();
            for (dataset, folder) in places {
                let (namespace, name) = (dataset.namespace().unwrap_or_default(), dataset.name_any());
                let Some(rooms) = Rooms::open(&folder)? else { continue };
                for (key, room) in rooms.all()? {
                    let made = Made { namespace: namespace.clone(), dataset: name.clone(), key };
                    all.push(Volume {
                        capacity_bytes: room.bytes,
                        volume_id: made.id(),
                        volume_context: HashMap::new(),
                    });
                }
            }
            Ok(all)
        })
        .await?;
        all.sort_by(|one, two| one.volume_id.cmp(&two.volume_id));
        all.retain(|volume| after.as_ref().is_none_or(|after| volume.volume_id > *after));
        let is_cut = most > 0 && all.len() > most;
        if is_cut {
            all.truncate(most);
        }
        let next_token = match all.last() {
            Some(last) if is_cut => format!("{AFTER}{}", last.volume_id),
            _ => String::new(),
        };
        let entries = all.into_iter().map(|volume| Entry { volume: Some(volume) }).collect();
        Ok(Response::new(ListVolumesResponse { entries, next_token }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        VolumeId::new(&request.volume_id)?;
        let range = request.capacity_range.as_ref();
        let range = range.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
        let (least, most) = sizes(Some(range))?;
        let (made, folder, mut room) = self.find(&request.volume_id).await?;
        if room.bytes > most {
            return Err(Status::out_of_range("the volume is larger than limit_bytes"));
        }
        room.bytes = room.bytes.max(least);
        let capacity_bytes = room.bytes;
        aside("write the size down", move || Rooms::make(&folder)?.put(&made.key, &room)).await?;
        Ok(Response::new(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let can = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::ListVolumes,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capabilities = can
            .map(|can| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: can.into() })) });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_dataset_and_room() {
        let made = Made::new("default", "a.b", "pvc-1").unwrap();
        assert_eq!(Made::read(&made.id()).unwrap(), Some(made));
        for id in ["default-data", "a.b", "a.b.c", "a.b.0123456789abcdeg", "a.b.../0123456789abcdef"] {
            let read = Made::read(id);
            assert!(read.is_err() || read.unwrap().is_none(), "{id}");
        }
        assert!(Made::new(&"n".repeat(63), &"d".repeat(63), "pvc-1").is_err(), "longer than an id may be");
    }

    #[test]
    fn sizes_are_understood() {
        let range =
            |required_bytes, limit_bytes| sizes(Some(&CapacityRange { required_bytes, limit_bytes })).ok();
        #[rustfmt::skip]
        let cases = [
            (range(0, 0),  Some((0, i64::MAX))),
            (range(5, 0),  Some((5, i64::MAX))),
            (range(5, 9),  Some((5, 9))),
            (range(9, 5),  None),
            (range(-1, 0), None),
        ];
        for (seen, expected) in cases {
            assert_eq!(seen, expected);
        }
        assert_eq!(sizes(None).unwrap(), (0, i64::MAX));
    }
}
