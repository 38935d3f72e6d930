//! P4Runtime over TLS, with and without certificates of clients.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{DEVICE, bare};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use ultima_p4runtime::v1::CapabilitiesRequest;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_switch::tls::{TlsError, TlsFiles};
use ultima_switch::{Switch, SwitchConfig, SwitchError};

/// An authority, as certificate and as what signs.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Authority { pem, issuer }
    }

    /// Certificate and key of one called `localhost`, in PEM format.
    fn sign(&self) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    /// A client's configuration that trusts this authority.
    fn trusted(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.pem))
            .domain_name("localhost")
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path
}

/// The files of a server that this authority vouches for.
fn files(folder: &Path, authority: &Authority) -> TlsFiles {
    let (cert, key) = authority.sign();
    TlsFiles {
        cert: write(folder, "cert.pem", &cert),
        key: write(folder, "key.pem", &key),
        client_ca: None,
    }
}

async fn start(files: TlsFiles) -> Result<Switch, SwitchError> {
    let config = SwitchConfig {
        tls: Some(files),
        ..bare()
    };
    Switch::start(config).await
}

fn endpoint(switch: &Switch, scheme: &str) -> Endpoint {
    Channel::from_shared(format!("{scheme}://{}", switch.grpc_addr())).expect("address")
}

/// Whether a client with this configuration is answered.
async fn is_served(switch: &Switch, tls: ClientTlsConfig) -> bool {
    let endpoint = endpoint(switch, "https").tls_config(tls).expect("sound");
    is_answered(endpoint).await
}

async fn is_answered(endpoint: Endpoint) -> bool {
    let Ok(channel) = endpoint.connect().await else {
        return false;
    };
    let request = CapabilitiesRequest { device_id: DEVICE };
    P4RuntimeClient::new(channel)
        .capabilities(request)
        .await
        .is_ok()
}

#[tokio::test]
async fn clients_that_trust_the_authority_are_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let files = files(folder.path(), &authority);
    let switch = start(files).await.expect("starts");
    assert!(is_served(&switch, authority.trusted()).await);
    assert!(
        !is_served(&switch, Authority::new().trusted()).await,
        "another authority"
    );
    assert!(!is_answered(endpoint(&switch, "http")).await, "without TLS");
    // And those after it are served still.
    assert!(is_served(&switch, authority.trusted()).await);
}

#[tokio::test]
async fn with_an_authority_for_clients_they_need_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let (servers, clients) = (Authority::new(), Authority::new());
    let files = TlsFiles {
        client_ca: Some(write(folder.path(), "ca.pem", &clients.pem)),
        ..files(folder.path(), &servers)
    };
    let switch = start(files).await.expect("starts");
    let with = |(cert, key): (String, String)| {
        let identity = Identity::from_pem(cert, key);
        servers.trusted().identity(identity)
    };
    assert!(is_served(&switch, with(clients.sign())).await);
    assert!(!is_served(&switch, with(servers.sign())).await, "another's");
    assert!(!is_served(&switch, servers.trusted()).await, "none");
}

#[tokio::test]
async fn files_that_are_none_are_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let good = files(folder.path(), &authority);
    let (_, other_key) = authority.sign();
    let refusal = async |files: TlsFiles| {
        let Err(SwitchError::Tls(error)) = start(files).await else {
            panic!("it starts");
        };
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        (error, text)
    };
    let missing = folder.path().join("missing.pem");
    let with_key = |key| TlsFiles {
        key,
        ..good.clone()
    };
    let (error, text) = refusal(with_key(missing.clone())).await;
    assert!(matches!(error, TlsError::Read { .. }), "{text}");
    assert!(text.contains("missing.pem"), "{text}");
    let (error, text) = refusal(with_key(good.cert.clone())).await;
    assert!(matches!(error, TlsError::Content { .. }), "{text}");
    assert!(text.contains("expected a private key"), "{text}");
    let other = write(folder.path(), "other.pem", &other_key);
    let (error, text) = refusal(with_key(other)).await;
    assert!(matches!(error, TlsError::Pair { .. }), "{text}");
    for (cert, client_ca) in [
        (good.key.clone(), None),
        (good.cert.clone(), Some(good.key.clone())),
        (write(folder.path(), "empty.pem", ""), None),
    ] {
        let files = TlsFiles {
            cert,
            client_ca,
            ..good.clone()
        };
        let (error, text) = refusal(files).await;
        assert!(matches!(error, TlsError::Content { .. }), "{text}");
        assert!(text.contains("expected certificates"), "{text}");
    }
}
