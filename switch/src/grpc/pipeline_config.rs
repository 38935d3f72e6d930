//! Setting and getting the forwarding pipeline config (P4Runtime §14, §15).

use tokio::runtime::Handle;
use tonic::Status;
use ultima_p4runtime::bmv2;
use ultima_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::{
    ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
    GetForwardingPipelineConfigResponse, SetForwardingPipelineConfigRequest,
    SetForwardingPipelineConfigResponse,
};

use super::Service;
use crate::datapath::Datapath;
use crate::pipeline::{ConfigError, Pipeline};
use ultima_engine::LoadError;

impl Service {
    pub(super) async fn set_pipeline_config(
        &self,
        request: SetForwardingPipelineConfigRequest,
    ) -> Result<SetForwardingPipelineConfigResponse, Status> {
        let primary = (request.device_id, request.role, request.election_id);
        let config = request.config;
        // The primary may change while the program is loaded, so commands are checked again.
        self.controllers().check_primary(&primary)?;
        let reaper = Reaper(Handle::current());
        match Action::try_from(request.action) {
            Ok(Action::Commit) => {
                if config.is_some() {
                    return Err(Status::invalid_argument(
                        "COMMIT takes no config: it commits the saved one",
                    ));
                }
                let commit = move |datapath: &mut Datapath| {
                    let replaced = datapath.commit_saved();
                    replaced.map(|replaced| reaper.free(replaced))
                };
                let committed = self.change_program(&primary, None, commit).await?;
                committed.ok_or_else(no_saved)?;
            }
            // It is valid if it loads.
            Ok(Action::Verify) => reaper.free(self.load(config).await?),
            Ok(Action::VerifyAndSave) => {
                let pipeline = self.load(config).await?;
                let schema = pipeline.schema();
                let save = move |datapath: &mut Datapath| reaper.free(datapath.save(pipeline));
                self.change_program(&primary, schema, save).await?;
            }
            Ok(Action::VerifyAndCommit) => {
                let pipeline = self.load(config).await?;
                let schema = pipeline.schema();
                let commit = move |datapath: &mut Datapath| reaper.free(datapath.commit(pipeline));
                self.change_program(&primary, schema, commit).await?;
            }
            Ok(Action::ReconcileAndCommit) => {
                return Err(Status::unimplemented(
                    "RECONCILE_AND_COMMIT: use VERIFY_AND_COMMIT, and write entries again",
                ));
            }
            Ok(Action::Unspecified) | Err(_) => {
                return Err(Status::invalid_argument(format!(
                    "action {}: expected VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT or COMMIT",
                    request.action
                )));
            }
        }
        Ok(SetForwardingPipelineConfigResponse {})
    }

    pub(super) async fn get_pipeline_config(
        &self,
        request: GetForwardingPipelineConfigRequest,
    ) -> Result<GetForwardingPipelineConfigResponse, Status> {
        self.check_device(request.device_id)?;
        let response_type = ResponseType::try_from(request.response_type).map_err(|_| {
            Status::invalid_argument(format!(
                "response_type {} is unknown",
                request.response_type
            ))
        })?;
        // The config that reads and writes refer to, so that a client learns the ids that it must use. The forwarding thread
        // only shares it: a copy of a large one would take milliseconds.
        let shared = |datapath: &mut Datapath| datapath.target().map(|it| it.config.clone());
        let config = self.forwarder.call(shared).await?;
        let config = config.map(|config| select(&config, response_type));
        Ok(GetForwardingPipelineConfigResponse { config })
    }

    /// Returns the program that the switch started with, if the config has none and that program still waits for its P4Info:
    /// BMv2's way to give a P4Info to the program of its command line.
    async fn bare_program_for(
        &self,
        config: &ForwardingPipelineConfig,
    ) -> Result<Option<Vec<u8>>, Status> {
        if !bmv2::json(&config.p4_device_config).is_ok_and(|json| json.is_empty()) {
            return Ok(None);
        }
        let bare = |datapath: &mut Datapath| {
            let active = datapath.active().filter(|it| it.config.p4info.is_none());
            active.map(|active| active.config.clone())
        };
        let config = self.forwarder.call(bare).await?;
        Ok(config.map(|config| config.p4_device_config.clone()))
    }

    /// Loads a program on a thread of its own, so that neither forwarding nor the server waits.
    async fn load(&self, config: Option<ForwardingPipelineConfig>) -> Result<Pipeline, Status> {
        let mut config = config.ok_or_else(|| Status::invalid_argument("config is not set"))?;
        if let Some(json) = self.bare_program_for(&config).await? {
            config.p4_device_config = json;
        }
        let loader = self.loader.clone();
        let loaded = tokio::task::spawn_blocking(move || loader.load(config)).await;
        match loaded {
            Ok(result) => result.map_err(|error| rejected(&error)),
            Err(_) => Err(Status::internal(
                "loading the program failed; the previous one stays active",
            )),
        }
    }
}

/// Names the field of the config that is invalid.
fn rejected(error: &ConfigError) -> Status {
    let field = match error {
        ConfigError::Load(LoadError::P4Info { .. }) => "config.p4info: ",
        ConfigError::Load(_) => "config.p4_device_config: ",
        // The text names the field.
        _ => "",
    };
    Status::invalid_argument(format!("{field}{error}"))
}

fn no_saved() -> Status {
    Status::not_found("no config is saved; VERIFY_AND_SAVE one first")
}

/// Frees replaced programs outside the forwarding thread: a program with 10^5 entries takes milliseconds.
struct Reaper(Handle);

impl Reaper {
    fn free<T: Send + 'static>(&self, old: T) {
        self.0.spawn_blocking(move || drop(old));
    }
}

/// Returns the parts of a config that a response type requests.
fn select(config: &ForwardingPipelineConfig, wanted: ResponseType) -> ForwardingPipelineConfig {
    let with_p4info = matches!(wanted, ResponseType::All | ResponseType::P4infoAndCookie);
    let with_device = matches!(
        wanted,
        ResponseType::All | ResponseType::DeviceConfigAndCookie
    );
    ForwardingPipelineConfig {
        p4info: config.p4info.clone().filter(|_| with_p4info),
        p4_device_config: if with_device {
            config.p4_device_config.clone()
        } else {
            Vec::new()
        },
        cookie: config.cookie,
    }
}
