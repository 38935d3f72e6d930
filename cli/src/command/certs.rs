//! `ultima certs`: a certificate authority for a testbed, and certificates for its controllers, agents and people.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use ultima_api::identity::{Identity, Role};
use ultima_api::is_name;

use crate::exit::{Exit, InputErrors as _};
use ultima_console::output;

/// The file of the authority's certificate, which every machine gets.
const CA: &str = "ca.pem";
/// The file of the authority's key, which stays in the folder.
const CA_KEY: &str = "ca.key";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates are valid from a moment ago on, so that clocks may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// Make certificates for a testbed: an authority, and certificates for controllers, agents and people
///
/// Keys are written to files that only their owner reads. Move each certificate with its key, and ca.pem, to the machine
/// that needs them; ca.key stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ultima certs init
  ultima certs issue controller c1 --address 192.0.2.100
  ultima certs issue agent h1
  ultima certs issue operator alice

  ultima controller serve --fabric fabric.yaml --listen 192.0.2.100:9555 \\
      --tls-cert certs/controller-c1.pem --tls-key certs/controller-c1.key --tls-client-ca certs/ca.pem
  ultima job list --controller 192.0.2.100:9555 \\
      --tls-ca certs/ca.pem --tls-cert certs/operator-alice.pem --tls-key certs/operator-alice.key")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Init(Init),
    Issue(Issue),
}

/// Make an authority: ca.pem and ca.key
#[derive(clap::Args)]
#[command(after_help = "Example: ultima certs init --dir certs")]
struct Init {
    #[command(flatten)]
    files: Files,
    /// Days until the certificate expires
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Make a certificate that the authority signs: ROLE-NAME.pem and ROLE-NAME.key
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ultima certs issue controller c1 --address 192.0.2.100,c1.example
  ultima certs issue agent h1
  ultima certs issue viewer dashboard --days 30")]
struct Issue {
    /// Its holder's rights: an operator may do everything, an agent join from its host, a viewer read, a controller serve
    #[arg(value_parser = role())]
    role: Role,
    /// Its holder's name; an agent's is its host's name in the fabric
    #[arg(value_parser = name)]
    name: String,
    /// IP addresses and DNS names at which clients reach this controller, separated by commas
    #[arg(
        long,
        value_name = "ADDR,...",
        value_delimiter = ',',
        required_if_eq("role", "controller")
    )]
    address: Vec<String>,
    #[command(flatten)]
    files: Files,
    /// Days until the certificate expires
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(clap::Args)]
struct Files {
    /// Folder of the files; `init` creates it
    #[arg(long, value_name = "FOLDER", default_value = "certs")]
    dir: PathBuf,
    /// Overwrite existing files
    #[arg(long)]
    force: bool,
}

/// Parses a role, by its name.
fn role() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(Role::ALL.map(Role::name))
        .map(|name| name.parse().expect("one of these names"))
}

fn name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(
            "expected 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit"
                .into(),
        ),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Init(init) => self::init(init),
        Command::Issue(issue) => self::issue(issue),
    }
}

fn init(init: &Init) -> Result<()> {
    let folder = &init.files.dir;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    made.with_context(|| folder.display().to_string()).input()?;
    let key = KeyPair::generate()?;
    let pem = authority(init.days).self_signed(&key)?.pem();
    init.files.write(CA, CA_KEY, &pem, &key.serialize_pem())
}

fn issue(issue: &Issue) -> Result<()> {
    let folder = &issue.files.dir;
    let read = |file: &str| {
        let path = folder.join(file);
        fs::read_to_string(&path).map_err(|error| {
            anyhow!(
                "{}: {error}; make an authority with `ultima certs init --dir {}`",
                path.display(),
                folder.display()
            )
        })
    };
    // Clients need it, too.
    read(CA).input()?;
    let key = KeyPair::from_pem(&read(CA_KEY).input()?);
    let key = key.map_err(|error| anyhow!("{}: {error}", folder.join(CA_KEY).display()));
    let key = key.input()?;
    let issuer = Issuer::new(authority(issue.days), key);

    let identity = Identity {
        role: issue.role,
        name: issue.name.clone(),
    };
    if identity.role != Role::Controller && !issue.address.is_empty() {
        bail!(Exit::InvalidInput.because(format!(
            "--address is for controllers; clients do not connect to {identity}: leave it out"
        )));
    }
    let key = KeyPair::generate()?;
    let certificate = holder(&identity, &issue.address, issue.days)?.signed_by(&key, &issuer)?;
    let file = format!("{}-{}", identity.role, identity.name);
    issue.files.write(
        &format!("{file}.pem"),
        &format!("{file}.key"),
        &certificate.pem(),
        &key.serialize_pem(),
    )
}

/// The authority's certificate, without its key. The key's identifier is part of what it signs, so two authorities of one name
/// are two.
fn authority(days: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("Ultima testbed");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, days);
    params
}

/// The certificate of a role's holder, which clients reach at `addresses`.
fn holder(identity: &Identity, addresses: &[String], days: u32) -> Result<CertificateParams> {
    let params = CertificateParams::new(addresses.to_vec());
    let params = params.map_err(|error| anyhow!("--address {}: {error}", addresses.join(",")));
    let mut params = params.input()?;
    params.distinguished_name = named(&identity.to_string());
    let uri: Ia5String = identity.uri().try_into()?;
    params.subject_alt_names.push(SanType::URI(uri));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if identity.role == Role::Controller {
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    valid_for(&mut params, days);
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + days * DAY).into();
}

impl Files {
    /// Writes a certificate and its key, both or none.
    fn write(&self, certificate: &str, key: &str, pem: &str, key_pem: &str) -> Result<()> {
        let paths = [key, certificate].map(|file| self.dir.join(file));
        if !self.force
            && let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok())
        {
            let path = path.display();
            bail!(
                Exit::InvalidInput.because(format!("{path} exists; pass --force to overwrite it"))
            );
        }
        for (path, text) in paths.iter().zip([key_pem, pem]) {
            write(path, text).with_context(|| path.display().to_string())?;
        }
        let [key, certificate] = paths.map(|path| path.display().to_string());
        output::print(&format!("{certificate}\n{key}\n"))?;
        Ok(())
    }
}

/// Writes a new file that only its owner reads, and replaces `path` with it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| {
            // The first error says more.
            let _ = fs::remove_file(&beside);
        })
}
