//! Access over TLS: every role at every call, and agents on other hosts.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use prost_types::FileDescriptorSet;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tonic::client::Grpc;
use tonic::codegen::http::StatusCode;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use ultima_api::address::Listen;
use ultima_api::client::{self, Client, ClientError};
use ultima_api::identity::{Identity, Role};
use ultima_api::v1::leadership_client::LeadershipClient;
use ultima_api::v1::{FILE_DESCRIPTOR_SET, GetStandingRequest, JoinResponse};
use ultima_controller::server::{self, CandidateHandle, Config, Handle, RateLimit, ServeError};
use ultima_grpc::tls::{ClientTls, IdentityFiles, ServerTls};
use ultima_planner::job::JobSpec;

use crate::chaos::ChaosSwitch;
use crate::group;
use crate::target::Target;
use crate::test_agents;
use crate::testbed::metrics;

/// An authority and the files of its certificates.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        fs::write(folder.path().join("ca.pem"), pem).unwrap();
        let issuer = Issuer::new(params, key);
        Authority { folder, issuer }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// A certificate for 127.0.0.1 with these URIs.
    fn issue(&self, name: &str, uris: &[String]) -> IdentityFiles {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let uri = |uri: &String| SanType::URI(uri.as_str().try_into().unwrap());
        params.subject_alt_names.extend(uris.iter().map(uri));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (cert, key_file) = (
            self.path(&format!("{name}.pem")),
            self.path(&format!("{name}.key")),
        );
        fs::write(&cert, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        IdentityFiles {
            cert,
            key: key_file,
        }
    }

    fn client(&self, uris: &[String]) -> ClientTls {
        let files = self.issue("client", uris);
        ClientTls::load(&self.path("ca.pem"), Some(&files)).unwrap()
    }

    /// TLS of the holder of a role.
    fn holder(&self, role: Role, name: &str) -> ClientTls {
        self.client(&[uri(role, name)])
    }

    fn server(&self) -> ServerTls {
        ServerTls {
            identity: self.issue("server", &[]),
            client_ca: Some(self.path("ca.pem")),
        }
    }
}

fn uri(role: Role, name: &str) -> String {
    let name = name.into();
    Identity { role, name }.uri()
}

/// The path of every call of the API.
fn calls() -> Vec<String> {
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut calls = Vec::new();
    for file in &files.file {
        for service in &file.service {
            let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
            calls.extend(service.method.iter().map(|it| path(it.name())));
        }
    }
    calls
}

/// Makes a call with an empty message. Returns the refusal's code; `Ok` if an answer or a stream begins.
async fn call(address: &str, tls: &ClientTls, path: &str) -> Code {
    let answer = call_with(address, Some(tls), path, ()).await;
    answer.map_or_else(|status| status.code(), |()| Code::Ok)
}

async fn call_with<M: Message + 'static>(
    address: &str,
    tls: Option<&ClientTls>,
    path: &str,
    message: M,
) -> Result<(), Status> {
    let endpoint = client::endpoint(address, tls).unwrap();
    let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(20));
    let codec = ProstCodec::<M, ()>::default();
    grpc.server_streaming(request, path, codec).await.map(drop)
}

const STAR: &str = include_str!("../../../topologies/star4.yaml");

/// A controller of [`STAR`] on a free port of loopback.
fn config(tls: Option<ServerTls>) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls,
        ..Target::of_run().config_for(STAR, "star.yaml")
    }
}

/// Starts a controller with a switch.
async fn serve(config: Config) -> (ChaosSwitch, Handle) {
    let target = Target::of_run();
    let switch = ChaosSwitch::start_as(target).await;
    let text = STAR.replace("127.0.0.1:9559", &switch.address().to_string());
    let fabric = target.fabric(&text, "star.yaml");
    let handle = server::serve(Config { fabric, ..config }).await;
    (switch, handle.unwrap())
}

/// A controller that stands by forever: its etcd does not answer.
async fn standby(config: Config) -> Result<CandidateHandle, ServeError> {
    let store = group::cluster(vec!["127.0.0.1:1".into()], "ultima");
    server::serve_with_etcd(config, store, None).await
}

/// New certificates of another authority serve new connections; the connections of the old ones go on.
#[tokio::test]
async fn certificates_are_replaced_while_the_controller_serves() {
    let [old, new] = [Authority::new(), Authority::new()];
    let tls = old.server();
    let handle = standby(config(Some(tls.clone()))).await.unwrap();
    let address = handle.address().to_string();
    let [of_old, of_new] = [&old, &new].map(|it| it.holder(Role::Viewer, "v"));
    let connect = async |tls: &ClientTls| {
        let endpoint = client::endpoint(&address, Some(tls)).unwrap();
        let channel = endpoint.connect().await?;
        let mut rpc = LeadershipClient::new(channel);
        rpc.get_standing(GetStandingRequest {}).await?;
        Ok::<_, Box<dyn std::error::Error>>(rpc)
    };
    let mut before = connect(&of_old).await.unwrap();
    connect(&of_new).await.unwrap_err();
    // Files that do not belong together are not used.
    let files = new.server();
    fs::copy(&files.identity.cert, &tls.identity.cert).unwrap();
    connect(&of_old).await.unwrap();
    fs::copy(&files.identity.key, &tls.identity.key).unwrap();
    fs::copy(files.client_ca.unwrap(), tls.client_ca.unwrap()).unwrap();
    connect(&of_new).await.unwrap();
    connect(&of_old).await.unwrap_err();
    before.get_standing(GetStandingRequest {}).await.unwrap();
    handle.stop().await;
}

/// The roles that may make each call.
const ROLES: [(&str, &str); 27] = [
    ("Control/CreateJob", "operator"),
    ("Control/CreateJobs", "operator"),
    ("Control/DeleteJob", "operator"),
    ("Control/SyncFabric", "operator"),
    ("Control/SetAdminState", "operator"),
    ("Control/ConfigurePorts", "operator"),
    ("Control/ResizeJob", "operator"),
    ("Control/UpdateJob", "operator"),
    ("Control/EvictMember", "operator"),
    ("Control/CancelChange", "operator"),
    ("Control/ListJobs", "operator agent viewer"),
    ("Control/GetJob", "operator agent viewer"),
    ("Control/Join", "operator agent"),
    ("Control/Leave", "operator agent"),
    ("Control/Attend", "operator agent"),
    ("Control/CheckJob", "operator agent"),
    ("Control/GetCounters", "operator viewer"),
    ("Control/GetTelemetry", "operator viewer"),
    ("Control/WatchTelemetry", "operator viewer"),
    ("Control/ListSwitches", "operator viewer"),
    ("Control/GetFabric", "operator viewer"),
    ("Control/DiffFabric", "operator viewer"),
    ("Control/PlanJobs", "operator viewer"),
    ("Control/PlanFabric", "operator viewer"),
    ("Control/WatchJob", "operator viewer"),
    ("Control/ListEvents", "operator viewer"),
    ("Leadership/GetStanding", "operator agent viewer controller"),
];

#[tokio::test]
async fn every_role_makes_its_calls_and_no_others() {
    let calls = calls();
    let authority = Authority::new();
    // A standby: it refuses all calls that it may answer, and needs no switch.
    let handle = standby(config(Some(authority.server()))).await.unwrap();
    let address = handle.address().to_string();
    assert_eq!(calls.len(), ROLES.len(), "each call has one entry");
    for role in Role::ALL {
        let tls = authority.holder(role, "h1");
        for path in &calls {
            let entry = ROLES
                .iter()
                .find(|(of, _)| path.ends_with(&format!(".{of}")));
            let (_, roles) = entry.unwrap_or_else(|| panic!("{path} has no entry"));
            let is_allowed = roles.split(' ').any(|it| it == role.to_string());
            let code = call(&address, &tls, path).await;
            let is_refused = code == Code::PermissionDenied;
            assert_eq!(is_refused, !is_allowed, "{role}: {path}: {code}");
        }
        let unknown = call(&address, &tls, "/ultima.control.v1.Control/Unknown").await;
        assert_eq!(unknown, Code::Unimplemented, "{role}");
    }
    let (operator, viewer) = (uri(Role::Operator, "a"), uri(Role::Viewer, "a"));
    for uris in [vec![], vec![operator, viewer], vec!["https://x/".into()]] {
        let tls = authority.client(&uris);
        for path in &calls {
            let code = call(&address, &tls, path).await;
            assert_eq!(code, Code::PermissionDenied, "{uris:?}: {path}");
        }
    }
}

/// A field that no message of the API has.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "1000")]
    bytes: Vec<u8>,
}

/// Each call of a leader, and the calls that a standby answers.
#[tokio::test]
async fn too_large_requests_are_refused_with_the_limit() {
    let (_switch, leader) = serve(config(None)).await;
    let standby = standby(config(None)).await.unwrap();
    let reads = [
        "ListJobs",
        "GetJob",
        "ListSwitches",
        "GetFabric",
        "ListEvents",
    ];
    let is_read = |path: &String| reads.iter().any(|it| path.ends_with(&format!("/{it}")));
    let of_standby = calls().into_iter().filter(is_read);
    let (leader, standby) = (leader.address(), standby.address());
    let of_leader = calls().into_iter().map(|path| (leader, path));
    let all = of_leader.chain(of_standby.map(|path| (standby, path)));
    let mut count = 0;
    for (address, path) in all {
        let bytes = vec![0; 4 << 20];
        let refused = call_with(&address.to_string(), None, &path, Unknown { bytes }).await;
        let refused = refused.expect_err(&path);
        assert_eq!(refused.code(), Code::OutOfRange, "{path}: {refused}");
        let limit = "message length too large: found 4194310 bytes, the limit is: 4194304 bytes";
        assert!(refused.message().contains(limit), "{path}: {refused}");
        count += 1;
    }
    assert_eq!(count, ROLES.len() + reads.len());
}

fn is_denied<T>(answer: Result<T, ClientError>) -> bool {
    let code = Code::PermissionDenied;
    answer.is_err_and(|error| matches!(error, ClientError::Refused { code: of, .. } if of == code))
}

#[tokio::test]
async fn an_agent_acts_only_for_its_own_host() {
    let authority = Authority::new();
    let (_switch, handle) = serve(Config {
        jobs_per_client: Some(2),
        ..config(Some(authority.server()))
    })
    .await;
    let address = handle.address().to_string();
    let connect = async |tls| Client::connect_with(&address, Some(tls)).await.unwrap();
    let operator = connect(authority.holder(Role::Operator, "a")).await;
    for (job, hosts) in [("ours", ["h1", "h2"]), ("theirs", ["h2", "h3"])] {
        operator
            .create_job(&JobSpec::new(job, hosts))
            .await
            .unwrap();
    }
    // Each operator has its own quota.
    let third = JobSpec::new("third", ["h3", "h4"]);
    let refused = operator.create_job(&third).await.unwrap_err().to_string();
    assert!(
        refused.starts_with("operator a has 2 jobs of at most 2; "),
        "{refused}"
    );
    let second = connect(authority.holder(Role::Operator, "b")).await;
    second.create_job(&third).await.unwrap();
    let events = second.events("job/third").await.unwrap();
    assert!(events[0].message.ends_with("; by operator b"), "{events:?}");
    let agent = connect(authority.holder(Role::Agent, "h1")).await;
    let other = connect(authority.holder(Role::Agent, "h2")).await;
    assert!(is_denied(agent.join("ours", "h2", Duration::ZERO).await));
    assert!(is_denied(agent.check("theirs").await));
    let seat = agent.join("ours", "h1", Duration::ZERO).await.unwrap();
    other.join("ours", "h2", Duration::ZERO).await.unwrap();
    assert!(agent.check("ours").await.is_ok());
    // With the right token.
    let before = agent.job("ours").await.unwrap();
    assert!(is_denied(other.leave(seat.leave("ours")).await));
    let attended = test_agents::hold_session(&other, seat.attendance("ours")).await;
    assert!(is_denied(attended));
    assert_eq!(agent.job("ours").await.unwrap(), before);
    agent.leave(seat.leave("ours")).await.unwrap();

    // Without a certificate, and with one of another authority.
    let stranger = Authority::new();
    let unknown = stranger.issue("client", &[uri(Role::Operator, "a")]);
    for identity in [None, Some(&unknown)] {
        let tls = ClientTls::load(&authority.path("ca.pem"), identity).unwrap();
        assert!(Client::connect_with(&address, Some(tls)).await.is_err());
    }
    assert!(Client::connect(&address).await.is_err());
}

/// Each connection of the client counts, and only of this client.
#[tokio::test]
async fn a_client_that_calls_too_often_is_refused_and_others_are_served() {
    const BURST: u32 = 20;
    let authority = Authority::new();
    let rate_limit = RateLimit {
        interval: Duration::from_secs(600),
        burst: BURST,
    };
    let (_switch, handle) = serve(Config {
        rate_limit,
        ..config(Some(authority.server()))
    })
    .await;
    let address = handle.address().to_string();
    let connect = async |role, name| {
        let tls = authority.holder(role, name);
        Client::connect_with(&address, Some(tls)).await.unwrap()
    };
    let mut answered = 0;
    let eager = [
        connect(Role::Agent, "h1").await,
        connect(Role::Agent, "h1").await,
    ];
    let refused = loop {
        match eager[answered as usize % 2].jobs().await {
            Ok(_) => answered += 1,
            Err(error) => break error,
        }
        assert!(answered <= BURST);
    };
    // Connecting may take calls, too.
    assert!(answered >= BURST / 2, "{answered}");
    let text = refused.to_string();
    assert!(text.contains("agent h1 makes more than "), "{text}");
    let code = Code::ResourceExhausted;
    assert!(
        matches!(refused, ClientError::Refused { code: of, .. } if of == code),
        "{refused:?}"
    );
    for (role, name) in [(Role::Agent, "h2"), (Role::Operator, "h1")] {
        let other = connect(role, name).await;
        assert!(other.jobs().await.is_ok(), "{role} {name}");
    }
    // Streams count, too.
    let path = "/ultima.control.v1.Control/Attend";
    let tls = authority.holder(Role::Agent, "h1");
    assert_eq!(call(&address, &tls, path).await, code);
}

#[tokio::test]
async fn other_addresses_than_loopback_need_tls() {
    let config = |listen: &str| Config {
        listen: listen.parse().unwrap(),
        ..config(None)
    };
    for listen in [
        "0.0.0.0:0",
        "[::]:0",
        "192.0.2.1:9555",
        "[::ffff:10.0.0.1]:0",
    ] {
        let refused = standby(config(listen)).await;
        assert!(matches!(refused, Err(ServeError::Open { .. })), "{listen}");
        let refused = server::serve(config(listen)).await;
        assert!(matches!(refused, Err(ServeError::Open { .. })), "{listen}");
    }
    for listen in ["127.0.0.1:0", "127.1.2.3:0", "[::ffff:127.0.0.1]:0"] {
        let handle = standby(config(listen)).await;
        handle.unwrap().stop().await;
    }
    let insecure = Config {
        insecure: true,
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        ..config("0.0.0.0:0")
    };
    let handle = standby(insecure).await.unwrap();
    let Some(Listen::Tcp(taken)) = handle.metrics_address() else {
        panic!("it serves metrics")
    };
    let again = Config {
        metrics: Some(*taken),
        ..config("127.0.0.1:0")
    };
    let refused = standby(again).await.err().unwrap().to_string();
    let says = format!("cannot listen on {taken}: Address already in use");
    assert!(
        refused.starts_with(&says) && refused.ends_with("with --metrics"),
        "{refused}"
    );
    handle.stop().await;
    let folder = tempfile::tempdir().unwrap();
    let on_unix = Config {
        tls: Some(Authority::new().server()),
        ..config(&format!("unix:{}", folder.path().join("socket").display()))
    };
    let refused = standby(on_unix).await;
    assert!(matches!(refused, Err(ServeError::TlsOnUnix { .. })));
}

/// Also a stranger that knows everything that the API shows.
#[tokio::test]
async fn a_member_cannot_attend_or_leave_as_another() {
    let (_switch, handle) = serve(config(None)).await;
    let client = Client::connect(&handle.address().to_string())
        .await
        .unwrap();
    let hosts = ["h1", "h2"];
    client
        .create_job(&JobSpec::new("train", hosts))
        .await
        .unwrap();
    let mut seats = Vec::new();
    for host in hosts {
        seats.push(client.join("train", host, Duration::ZERO).await.unwrap());
    }
    let before = client.job("train").await.unwrap();
    // No token, and that of the other member.
    for token in [0, seats[0].token, seats[1].token ^ 1] {
        let stranger = JoinResponse {
            token,
            ..seats[1].clone()
        };
        assert!(is_denied(client.leave(stranger.leave("train")).await));
        let attended = test_agents::hold_session(&client, stranger.attendance("train")).await;
        assert!(is_denied(attended), "{token}");
    }
    assert_eq!(client.job("train").await.unwrap(), before);
    client.leave(seats[1].leave("train")).await.unwrap();
}

/// Metrics are served next to the control API, to the roles that may read.
#[tokio::test]
async fn metrics_are_for_operators_and_viewers() {
    let authority = Authority::new();
    let handle = standby(config(Some(authority.server()))).await.unwrap();
    let address = handle.address().to_string();
    for (role, expected) in [
        (Role::Operator, StatusCode::OK),
        (Role::Viewer, StatusCode::OK),
        (Role::Agent, StatusCode::FORBIDDEN),
        (Role::Controller, StatusCode::FORBIDDEN),
    ] {
        let tls = authority.holder(role, "h1");
        let (status, text) = metrics(&address, Some(&tls)).await;
        assert_eq!(status, expected, "{role}");
        let is_answered = text.contains("ultima_controller_");
        assert_eq!(is_answered, expected == StatusCode::OK, "{role}: {text}");
        assert_eq!(
            text.contains("may not call metrics"),
            !is_answered,
            "{text}"
        );
    }
}
