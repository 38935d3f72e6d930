//! Other P4 programs on a switch, which are left alone.

use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_p4::names::job;
use ultima_p4runtime::config::v1::P4Info;
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
            return Ok(Some("without P4Info".to_owned()));
        }
        config => config?,
    };
    Ok(config.and_then(|config| foreign_in(&config)))
}

/// The program of this configuration, as [`foreign`] returns it.
fn foreign_in(config: &ForwardingPipelineConfig) -> Option<String> {
    let info = config
        .p4info
        .as_ref()
        .filter(|it| **it != P4Info::default());
    let Some(info) = info else {
        // Some switches without a program answer with an empty configuration.
        let has_cookie = config.cookie.is_some_and(|it| it.cookie != 0);
        return has_cookie.then(|| "without P4Info".to_owned());
    };
    let names = info.tables.iter().flat_map(|it| &it.preamble);
    let mut names = names.map(|it| &it.name);
    match names.clone().any(|name| name == job::TABLE) {
        true => None,
        false => Some(match names.next() {
            Some(table) => format!("with table {table}"),
            None => "without tables".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use ultima_p4runtime::config::v1::{PkgInfo, Preamble, Table};
    use ultima_p4runtime::v1::forwarding_pipeline_config::Cookie;

    use super::*;

    #[test]
    fn a_program_is_foreign_unless_it_has_our_table_of_jobs() {
        let table = |name: &str| Table {
            preamble: Some(Preamble {
                name: name.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let config = |cookie, p4info| ForwardingPipelineConfig {
            p4info,
            cookie: Some(Cookie { cookie }),
            ..Default::default()
        };
        let with = |names: &[&str]| P4Info {
            pkg_info: Some(PkgInfo {
                arch: "v1model".to_owned(),
                ..Default::default()
            }),
            tables: names.iter().copied().map(table).collect(),
            ..Default::default()
        };
        for (config, expected) in [
            (config(0, None), None),
            (config(0, Some(P4Info::default())), None),
            (config(7, None), Some("without P4Info")),
            (config(0, Some(with(&[]))), Some("without tables")),
            (config(7, Some(with(&["a", "b"]))), Some("with table a")),
            (config(7, Some(with(&["a", job::TABLE]))), None),
        ] {
            assert_eq!(foreign_in(&config).as_deref(), expected);
        }
    }
}
