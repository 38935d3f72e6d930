//! Other P4 programs on a switch, which are left alone.

use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_p4::names::job;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
    get_forwarding_pipeline_config_request::ResponseType,
};

/// These parts of a switch's program; none without a program. Needs no primary role.
pub(super) async fn read(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    parts: ResponseType,
) -> Result<Option<ForwardingPipelineConfig>, Status> {
    let request = GetForwardingPipelineConfigRequest {
        device_id,
        response_type: parts.into(),
    };
    match rpc.get_forwarding_pipeline_config(request).await {
        Ok(answer) => Ok(answer.into_inner().config),
        // P4Runtime's code for a switch without a program (§7.4).
        Err(status) if status.code() == Code::FailedPrecondition => Ok(None),
        Err(status) => Err(status),
    }
}

/// The program of a switch, as errors describe it; none if it has no program, the one with the cookie `own`, or another
/// version of Ultima's.
pub(super) async fn foreign(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    own: u64,
) -> Result<Option<String>, Status> {
    let Some(config) = read(rpc, device_id, ResponseType::CookieOnly).await? else {
        return Ok(None);
    };
    if config.cookie.is_some_and(|it| it.cookie == own) {
        return Ok(None);
    }
    let config = match read(rpc, device_id, ResponseType::P4infoAndCookie).await {
        Err(status) if status.code() == Code::Unimplemented => {
            return Ok(Some("which it does not describe".to_owned()));
        }
        config => config?,
    };
    let tables = config.and_then(|it| it.p4info).unwrap_or_default().tables;
    let mut names = tables
        .iter()
        .filter_map(|it| Some(&it.preamble.as_ref()?.name));
    if names.clone().any(|name| name == job::TABLE) {
        return Ok(None);
    }
    Ok(names.next().map(|table| format!("with table {table}")))
}
