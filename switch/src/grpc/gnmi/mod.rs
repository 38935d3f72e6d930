//! The gNMI service: status and counters of ports.

mod leaves;
mod subscribe;

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};
use ultima_gnmi::path::{self, join};
use ultima_gnmi::v0::g_nmi_server::GNmi;
use ultima_gnmi::v0::get_request::DataType;
use ultima_gnmi::v0::{
    CapabilityRequest, CapabilityResponse, Encoding, GetRequest, GetResponse, Notification, Path,
    PathElem, SetRequest, SetResponse, SubscribeRequest, SubscribeResponse, Update,
};
use ultima_grpc::fair::Origin;

use super::{ResponseStream, Service};
use crate::datapath::PortStatus;
use leaves::{ENCODINGS, Leaf};

/// Largest number of subscriptions.
pub(super) const SUBSCRIBERS: usize = 64;
/// Largest number of paths in a request.
const MAX_PATHS: usize = 64;
/// Largest number of elements in a path. OpenConfig's longest have fewer.
const MAX_ELEMENTS: usize = 32;

impl Service {
    async fn ports(&self) -> Result<watch::Receiver<Arc<[PortStatus]>>, Status> {
        let ports = self.forwarder.call(|datapath| datapath.port_status());
        Ok(ports.await?)
    }

    /// Returns all current leaves that match one of `patterns`.
    async fn leaves(&self, patterns: &[Vec<PathElem>]) -> Result<Vec<Leaf>, Status> {
        let ports = self.ports().await?.borrow().clone();
        let mut found = leaves::select(&ports, patterns);
        found.extend(self.counters(patterns).await?);
        Ok(found)
    }

    /// Returns the current counters that match one of `patterns`.
    async fn counters(&self, patterns: &[Vec<PathElem>]) -> Result<Vec<Leaf>, Status> {
        let snapshot = self.forwarder.call(|datapath| datapath.snapshot());
        Ok(leaves::select_counters(&snapshot.await?.ports, patterns))
    }
}

/// Reads a supported encoding.
fn encoding(number: i32) -> Result<Encoding, Status> {
    let known = Encoding::try_from(number).ok();
    known.filter(|it| ENCODINGS.contains(it)).ok_or_else(|| {
        Status::unimplemented(format!(
            "encoding {number}: expected PROTO, JSON or JSON_IETF"
        ))
    })
}

/// Checks the number and length of paths.
fn check_paths<'a>(
    prefix: Option<&Path>,
    paths: impl IntoIterator<Item = Option<&'a Path>>,
) -> Result<(), Status> {
    let refused = |text: String| Err(Status::resource_exhausted(text));
    let mut count = 0;
    for path in paths {
        count += 1;
        let elements: usize = prefix.into_iter().chain(path).map(|it| it.elem.len()).sum();
        if elements > MAX_ELEMENTS {
            return refused(format!(
                "a path has {elements} elements, expected at most {MAX_ELEMENTS}"
            ));
        }
    }
    match count > MAX_PATHS {
        true => refused(format!(
            "the request has {count} paths, expected at most {MAX_PATHS}; use wildcards, or send several"
        )),
        false => Ok(()),
    }
}

/// Returns the time in nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

fn notification(leaves: &[Leaf], encoding: Encoding) -> Notification {
    let update = |leaf: &Leaf| Update {
        path: Some(path::path(leaf.path.iter().cloned())),
        val: Some(leaf.value.encode(encoding)),
        duplicates: 0,
    };
    Notification {
        timestamp: now(),
        update: leaves.iter().map(update).collect(),
        ..Notification::default()
    }
}

#[tonic::async_trait]
impl GNmi for Service {
    type SubscribeStream = ResponseStream<SubscribeResponse>;

    async fn capabilities(
        &self,
        _: Request<CapabilityRequest>,
    ) -> Result<Response<CapabilityResponse>, Status> {
        Ok(Response::new(CapabilityResponse {
            supported_models: vec![leaves::model()],
            supported_encodings: ENCODINGS.map(i32::from).to_vec(),
            g_nmi_version: ultima_gnmi::VERSION.to_owned(),
        }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let request = request.into_inner();
        let encoding = encoding(request.encoding)?;
        check_paths(request.prefix.as_ref(), request.path.iter().map(Some))?;
        let of = DataType::try_from(request.r#type).map_err(|_| {
            Status::invalid_argument("type: expected ALL, CONFIG, STATE or OPERATIONAL")
        })?;
        let get = async |path: Option<&Path>| {
            let pattern = join(request.prefix.as_ref(), path);
            let mut found = self.leaves(std::slice::from_ref(&pattern)).await?;
            leaves::retain(&mut found, of);
            // A request for all elements of a kind is answered even if there are none.
            let asks_for_all = leaves::is_known(&pattern)
                && pattern.iter().any(|element| {
                    ["*", "..."].contains(&element.name.as_str())
                        || element.key.values().any(|key| key == "*")
                });
            match found.is_empty() && !asks_for_all {
                true => Err(Status::not_found(format!(
                    "{} does not exist: expected a path under /interfaces, such as /interfaces/interface[name=*]/state",
                    path::text(&pattern)
                ))),
                false => Ok(notification(&found, encoding)),
            }
        };
        let notification = match request.path.is_empty() {
            true => vec![get(None).await?],
            false => {
                let mut all = Vec::new();
                for path in &request.path {
                    all.push(get(Some(path)).await?);
                }
                all
            }
        };
        Ok(Response::new(GetResponse { notification }))
    }

    async fn set(&self, _: Request<SetRequest>) -> Result<Response<SetResponse>, Status> {
        Err(Status::unimplemented(
            "this switch has no leaf that can be set",
        ))
    }

    async fn subscribe(
        &self,
        request: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let admitted = self.gnmi_subscribers.admit(Origin::of(&request));
        let place = admitted.map_err(|_| subscribe::too_many())?;
        let ports = self.ports().await?;
        let stream = subscribe::open(request.into_inner(), self.clone(), ports, place).await?;
        Ok(Response::new(stream))
    }
}
