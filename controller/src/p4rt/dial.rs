//! Reaching a switch, and asking it who is its primary.

use std::error::Error as _;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::batch;
use ultima_p4runtime::tls::ClientTls;
use ultima_p4runtime::tofino::Packing;
use ultima_p4runtime::transport::{self, one_line, root_cause};
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{StreamMessageRequest, StreamMessageResponse};

use super::client::{BATCH, CALL_TIMEOUT};
use super::error::ConnectError;
use super::session::{self, Mastership};
use super::term::Term;

/// How long to wait before the next attempt while a switch refuses connections.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// The largest answer that is accepted; a read of everything comes in pieces below this.
const MAX_RESPONSE: usize = 64 << 20;
/// What a silent switch has not done.
pub(super) const ARBITRATION: &str = "no answer to arbitration";

/// One device behind a P4Runtime server.
#[derive(Clone, Debug)]
pub struct Device {
    /// The switch's name, for errors.
    pub name: String,
    /// Its P4Runtime server, `HOST:PORT`.
    pub grpc: String,
    /// Its id there.
    pub device_id: u64,
    /// How to speak to a server that serves TLS; none: in plain text.
    pub tls: Option<ClientTls>,
    /// How it takes a program for Tofino.
    pub packing: Packing,
}

/// A stream that has begun.
pub(super) struct Stream {
    pub requests: mpsc::Sender<StreamMessageRequest>,
    pub responses: Streaming<StreamMessageResponse>,
    /// What the switch says of it.
    pub standing: Mastership,
    /// The election id that it says it of.
    pub election_id: u128,
}

/// Connects to a switch, trying until the deadline: it may just be starting.
pub(super) async fn connect(
    device: &Device,
    deadline: Instant,
    patience: Duration,
) -> Result<P4RuntimeClient<Channel>, ConnectError> {
    let no_answer = |reason| no_answer(device, patience, reason);
    let endpoint = transport::endpoint(&device.grpc, device.tls.as_ref())
        .map_err(|error| no_answer(error.to_string()))?
        .tcp_nodelay(true)
        .tcp_keepalive(Some(CALL_TIMEOUT))
        // A failed batch tells of each of its updates in a trailer.
        .http2_max_header_list_size(batch::header_list_size(BATCH));
    let channel = loop {
        let reason = match timeout_at(deadline, endpoint.connect()).await {
            Ok(Ok(channel)) => break channel,
            Ok(Err(error)) => root_cause(&error),
            Err(_) => return Err(no_answer("no connection".into())),
        };
        if Instant::now() + RETRY >= deadline {
            return Err(no_answer(reason));
        }
        sleep(RETRY).await;
    };
    Ok(P4RuntimeClient::new(channel).max_decoding_message_size(MAX_RESPONSE))
}

/// Begins a stream with `election_id`.
pub(super) async fn open(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    election_id: u128,
) -> Result<Stream, Status> {
    let first = session::arbitration(device_id, election_id);
    let (requests, outgoing) = session::requests(first);
    let mut responses = rpc.stream_channel(outgoing).await?.into_inner();
    let standing = session::next(&mut responses).await?;
    Ok(Stream {
        requests,
        responses,
        standing,
        election_id,
    })
}

/// Begins a stream that asks for mastership.
pub(super) async fn arbitrate(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    election_id: u128,
) -> Result<Stream, Status> {
    let mut stream = open(rpc, device_id, election_id).await?;
    if let Mastership::Vacant { highest } = stream.standing
        && !is_later(highest, election_id)
    {
        // Another client with a higher id was primary and has gone.
        let again = session::arbitration(device_id, highest);
        // If nobody takes it the stream has ended, which the next answer says.
        let _ = stream.requests.send(again).await;
        stream.standing = session::next(&mut stream.responses).await?;
        stream.election_id = highest;
    }
    Ok(stream)
}

/// Whether the highest election id that a switch has seen is of a later term than ours: what its primary has promised we may
/// not know.
pub(super) fn is_later(highest: u128, ours: u128) -> bool {
    highest > ours && Term::of(highest).is_some()
}

pub(super) fn no_answer(device: &Device, timeout: Duration, reason: String) -> ConnectError {
    ConnectError::NoAnswer {
        switch: device.name.clone(),
        grpc: device.grpc.clone(),
        timeout,
        reason,
    }
}

/// The server ended the stream with `status` in answer to our arbitration (P4Runtime §5.3).
pub(super) fn refused(device: &Device, status: &Status) -> ConnectError {
    let (switch, grpc) = (device.name.clone(), device.grpc.clone());
    if let Some(cause) = status.source() {
        // Made here, not there: the transport failed.
        return ConnectError::Broken {
            switch,
            grpc,
            reason: root_cause(cause),
            hint: match device.tls {
                None => "if it serves TLS, give it `tls` in the fabric",
                Some(_) => "if it serves known clients only, give `cert` and `key` in its `tls`",
            },
        };
    }
    let message = one_line(status.message());
    match status.code() {
        Code::NotFound => ConnectError::NoDevice {
            switch,
            grpc,
            device_id: device.device_id,
            message,
        },
        // The election id is in use: the other controller has it.
        Code::InvalidArgument => ConnectError::NotPrimary {
            switch,
            grpc,
            message,
        },
        _ => ConnectError::Refused {
            switch,
            grpc,
            message,
        },
    }
}
