//! The Garage processes of a site, as the place where changes go.

use std::net::SocketAddr;

use holdfast_crds::ids::{LayoutVersion, NodeId};

use super::{CallFailure, GarageCalls, Peer, Refusal, RepairKind};
use crate::garage::{Client, Error, Http, Preview, Secret};
use crate::observe::{Endpoint, Layout, StagedChange};

/// Endpoints of one pass: where the running Pods' Admin APIs are, and the token they take.
pub struct Endpoints {
    http: Http,
    token: Secret,
    running: Vec<Endpoint>,
}

impl Endpoints {
    /// The endpoints that the pass used to observe.
    pub fn new(http: Http, token: Secret, running: Vec<Endpoint>) -> Self {
        Self { http, token, running }
    }

    fn client(&self, address: SocketAddr) -> Client {
        Client::new(&self.http, address, self.token.clone())
    }

    /// The endpoint of exactly this node: a layout change goes where it was decided (FACTS 2).
    fn at(&self, at: Option<NodeId>) -> Result<Client, CallFailure> {
        let endpoint = match at {
            Some(id) => self.running.iter().find(|endpoint| endpoint.node == Some(id)),
            None => self.running.first(),
        };
        endpoint.map(|endpoint| self.client(endpoint.address)).ok_or_else(|| unreachable(at))
    }

    /// The node's own endpoint, else any: Garage passes the call on.
    fn near(&self, node: NodeId) -> Result<Client, CallFailure> {
        self.at(Some(node)).or_else(|_| self.at(None))
    }
}

fn unreachable(at: Option<NodeId>) -> CallFailure {
    CallFailure::NotExecuted(Refusal::Unreachable(at.map_or_else(|| "any node".to_owned(), |id| id.short())))
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        if error.certainly_not_executed() {
            Self::NotExecuted(match error {
                Error::Refused => Refusal::Unreachable("its address".to_owned()),
                other => Refusal::Garage(other.to_string()),
            })
        } else {
            Self::Unknown(error.to_string())
        }
    }
}

impl GarageCalls for Endpoints {
    async fn layout(&self, at: Option<NodeId>) -> Result<Layout, CallFailure> {
        Ok(self.at(at)?.layout().await?)
    }

    async fn update_layout(
        &self,
        at: Option<NodeId>,
        changes: &[StagedChange],
    ) -> Result<Layout, CallFailure> {
        Ok(self.at(at)?.update_layout(changes, None).await?)
    }

    async fn preview_layout(&self, at: Option<NodeId>) -> Result<Option<Layout>, CallFailure> {
        Ok(match self.at(at)?.preview_layout().await? {
            Preview::Accepted(layout) => Some(layout),
            Preview::Refused(_) => None,
        })
    }

    async fn apply_layout(&self, at: Option<NodeId>, version: LayoutVersion) -> Result<Layout, CallFailure> {
        Ok(self.at(at)?.apply_layout(version).await?)
    }

    async fn skip_dead_nodes(
        &self,
        at: Option<NodeId>,
        version: LayoutVersion,
    ) -> Result<Vec<NodeId>, CallFailure> {
        Ok(self.at(at)?.skip_dead_nodes(version).await?.ack_updated.into_iter().collect())
    }

    async fn connect_nodes(&self, at: SocketAddr, peers: &[Peer]) -> Result<Vec<bool>, CallFailure> {
        let peers: Vec<(NodeId, SocketAddr)> = peers.iter().map(|peer| (peer.id, peer.address)).collect();
        Ok(self.client(at).connect(&peers).await?.into_iter().map(|answer| answer.success).collect())
    }

    async fn launch_repair(&self, node: NodeId, kind: RepairKind) -> Result<(), CallFailure> {
        Ok(self.near(node)?.launch_repair(node, kind).await?)
    }

    async fn set_worker_variable(
        &self,
        node: NodeId,
        variable: &str,
        value: &str,
    ) -> Result<(), CallFailure> {
        Ok(self.near(node)?.set_worker_variable(node, variable, value).await?)
    }
}
