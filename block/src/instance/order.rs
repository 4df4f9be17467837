//! An instance manager from the side of whoever gives it orders.
//!
//! Invariant: every call carries the secret.

use std::{net::SocketAddr, time::Duration};

use prost::Message;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue, errors::InvalidMetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use super::{
    proto::{Reason, Refusal, instance_manager_client::InstanceManagerClient},
    secret::Secret,
};

/// Adds the proof that the caller knows the secret.
#[derive(Debug, Clone)]
pub struct Proof(MetadataValue<Ascii>);

impl Interceptor for Proof {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub type Orders = InstanceManagerClient<InterceptedService<Channel, Proof>>;

#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("{at} is no address to connect to")]
    Address { at: SocketAddr, source: tonic::transport::Error },
    #[error("the secret cannot be sent")]
    Secret(#[from] InvalidMetadataValue),
}

const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Speaks to the instance manager at an address; it is connected to by the first call.
pub fn orders(at: SocketAddr, secret: &Secret) -> Result<Orders, OrderError> {
    let endpoint = Endpoint::from_shared(format!("http://{at}"));
    let endpoint = endpoint.map_err(|source| OrderError::Address { at, source })?;
    let proof = Proof(secret.header().parse()?);
    let channel = endpoint.connect_timeout(CONNECT_WITHIN).connect_lazy();
    Ok(InstanceManagerClient::with_interceptor(channel, proof))
}

/// The reason in a refusal, if the instance manager gave one.
pub fn refusal(status: &Status) -> Option<(Reason, Refusal)> {
    let refusal = Refusal::decode(status.details()).ok()?;
    let reason = Reason::try_from(refusal.reason).ok()?;
    (reason != Reason::Unspecified).then_some((reason, refusal))
}
