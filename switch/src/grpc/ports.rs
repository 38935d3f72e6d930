//! The port statistics service.

use tonic::{Request, Response, Status};

use super::Service;
use crate::proto::port_statistics_server::PortStatistics;
use crate::proto::{GetRequest, GetResponse};
use crate::translate::statistics;

#[tonic::async_trait]
impl PortStatistics for Service {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.check_device_or_only(request.into_inner().device_id)?;
        let snapshot = self.forwarder.call(|datapath| datapath.snapshot());
        let mut response = statistics::message(self.device_id, snapshot.await?);
        response.notifications = Some(statistics::notifications(&self.tallies));
        Ok(Response::new(response))
    }
}
