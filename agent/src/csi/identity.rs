//! Who the plugin is.

use midflight_api::fluid::DRIVER;
use tonic::{Request, Response, Status, async_trait};

use super::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
    identity_server::Identity,
    plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion},
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Plugin;

#[async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetPluginInfoResponse { name: DRIVER.to_owned(), vendor_version: version }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = Type::Service(Service { r#type: service::Type::ControllerService.into() });
        let online = volume_expansion::Type::Online.into();
        let expansion = Type::VolumeExpansion(VolumeExpansion { r#type: online });
        let capabilities = [controller, expansion].map(|can| PluginCapability { r#type: Some(can) });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse {}))
    }
}
