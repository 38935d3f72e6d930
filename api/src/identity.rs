//! The holder of a certificate: a role and a name, as a SPIFFE ID.

use std::fmt;
use std::str::FromStr;

/// The trust domain of all identities.
const DOMAIN: &str = "spiffe://ultima/";

/// The role of a certificate's holder. The controller has the list of calls that each may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything that people do.
    Operator,
    /// Join jobs from one host, and report and hold sessions as its members.
    Agent,
    /// Read.
    Viewer,
    /// Serve.
    Controller,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Operator, Role::Agent, Role::Viewer, Role::Controller];

    /// Its name in URIs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::Operator => "operator",
            Role::Agent => "agent",
            Role::Viewer => "viewer",
            Role::Controller => "controller",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut all = Role::ALL.into_iter();
        all.find(|role| role.name() == text).ok_or(())
    }
}

/// The holder of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its role.
    pub role: Role,
    /// Its name; an agent's is that of its host in the fabric.
    pub name: String,
}

impl Identity {
    /// The identity that a URI names, such as `spiffe://ultima/agent/h1`; none if it names none.
    pub fn of_uri(uri: &str) -> Option<Identity> {
        let (role, name) = uri.strip_prefix(DOMAIN)?.split_once('/')?;
        let role = role.parse().ok()?;
        is_name(name).then(|| Identity {
            role,
            name: name.to_owned(),
        })
    }

    /// The URI of the identity.
    pub fn uri(&self) -> String {
        format!("{DOMAIN}{}/{}", self.role, self.name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

/// True if `name` can name a switch, a host, a job or the holder of a certificate: 1 to 63 letters, digits, `-`, `_` or `.`, the
/// first a letter or digit. It is valid in file names, in `s1/9`, on a command line, and as a segment of a SPIFFE ID.
pub fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && (name.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_round_trip_through_uris() {
        for role in Role::ALL {
            let identity = Identity {
                role,
                name: "leaf-1.rack_2".into(),
            };
            assert_eq!(Identity::of_uri(&identity.uri()), Some(identity));
        }
    }

    #[test]
    fn other_uris_are_no_identities() {
        for uri in [
            "",
            "spiffe://ultima/",
            "spiffe://ultima/agent",
            "spiffe://ultima/agent/",
            "spiffe://ultima/agent/..",
            "spiffe://ultima/agent/h1/h2",
            "spiffe://ultima/agent/h1 ",
            "spiffe://ultima/root/h1",
            "spiffe://ultima/Agent/h1",
            "spiffe://ultima2/agent/h1",
            "https://ultima/agent/h1",
        ] {
            assert_eq!(Identity::of_uri(uri), None, "{uri}");
        }
    }
}
