//! P4Runtime over TLS, with and without certificates of clients.

use std::fs;
use std::path::{Path, PathBuf};

use crate::served::authority::Authority;
use crate::served::common::{DEVICE, base_config};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use ultima_grpc::tls::{IdentityFiles, ServerTls, TlsError};
use ultima_p4runtime::v1::CapabilitiesRequest;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_switch::{Switch, SwitchConfig, SwitchError};

fn trusted(authority: &Authority) -> ClientTlsConfig {
    ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&authority.pem))
        .domain_name("localhost")
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path
}

/// A server's files, with a certificate of this authority.
fn files(folder: &Path, authority: &Authority) -> ServerTls {
    let (cert, key) = authority.sign();
    ServerTls {
        identity: IdentityFiles {
            cert: write(folder, "cert.pem", &cert),
            key: write(folder, "key.pem", &key),
        },
        client_ca: None,
    }
}

async fn start(files: ServerTls) -> Result<Switch, SwitchError> {
    let config = SwitchConfig {
        tls: Some(files),
        ..base_config()
    };
    Switch::start(config).await
}

fn endpoint(switch: &Switch, scheme: &str) -> Endpoint {
    Channel::from_shared(format!("{scheme}://{}", switch.grpc_addr())).expect("address")
}

/// True if a client with this configuration gets an answer.
async fn is_served(switch: &Switch, tls: ClientTlsConfig) -> bool {
    let endpoint = endpoint(switch, "https").tls_config(tls).expect("valid");
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
    assert!(is_served(&switch, trusted(&authority)).await);
    assert!(
        !is_served(&switch, trusted(&Authority::new())).await,
        "another authority"
    );
    assert!(!is_answered(endpoint(&switch, "http")).await, "without TLS");
    // Later clients are still served.
    assert!(is_served(&switch, trusted(&authority)).await);
}

#[tokio::test]
async fn clients_need_a_certificate_of_the_configured_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let (servers, clients) = (Authority::new(), Authority::new());
    let files = ServerTls {
        client_ca: Some(write(folder.path(), "ca.pem", &clients.pem)),
        ..files(folder.path(), &servers)
    };
    let switch = start(files).await.expect("starts");
    let with = |(cert, key): (String, String)| {
        let identity = Identity::from_pem(cert, key);
        trusted(&servers).identity(identity)
    };
    assert!(is_served(&switch, with(clients.sign())).await);
    assert!(
        !is_served(&switch, with(servers.sign())).await,
        "a certificate of another authority"
    );
    assert!(
        !is_served(&switch, trusted(&servers)).await,
        "no certificate"
    );
}

#[tokio::test]
async fn invalid_files_are_refused_with_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let good = files(folder.path(), &authority);
    let (_, other_key) = authority.sign();
    let refusal = async |files: ServerTls| {
        let Err(SwitchError::Tls(error)) = start(files).await else {
            panic!("it starts");
        };
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        (error, text)
    };
    let missing = folder.path().join("missing.pem");
    let with_key = |key| ServerTls {
        identity: IdentityFiles {
            key,
            ..good.identity.clone()
        },
        client_ca: None,
    };
    let (error, text) = refusal(with_key(missing.clone())).await;
    assert!(matches!(error, TlsError::Read { .. }), "{text}");
    assert!(text.contains("missing.pem"), "{text}");
    let (error, text) = refusal(with_key(good.identity.cert.clone())).await;
    assert!(matches!(error, TlsError::Content { .. }), "{text}");
    assert!(text.contains("expected a private key"), "{text}");
    let other = write(folder.path(), "other.pem", &other_key);
    let (error, text) = refusal(with_key(other)).await;
    assert!(matches!(error, TlsError::Pair { .. }), "{text}");
    for (cert, client_ca) in [
        (good.identity.key.clone(), None),
        (good.identity.cert.clone(), Some(good.identity.key.clone())),
        (write(folder.path(), "empty.pem", ""), None),
    ] {
        let key = good.identity.key.clone();
        let files = ServerTls {
            identity: IdentityFiles { cert, key },
            client_ca,
        };
        let (error, text) = refusal(files).await;
        assert!(matches!(error, TlsError::Content { .. }), "{text}");
        assert!(text.contains("expected certificates"), "{text}");
    }
}
