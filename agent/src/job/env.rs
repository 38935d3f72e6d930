//! Environment variables, as text and as numbers.

use std::env;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ultima_grpc::tls::{ClientTls, IdentityFiles};

use super::JobError;

/// Returns a variable's value.
type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Looks up variables: those of the process, or a test's.
pub(super) struct Variables<'a>(Box<Lookup<'a>>);

impl fmt::Debug for Variables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Variables(..)")
    }
}

impl<'a> Variables<'a> {
    /// The process's.
    pub(super) fn of_process() -> Variables<'static> {
        Variables(Box::new(|name| env::var(name).ok()))
    }

    #[cfg(test)]
    pub(super) fn of(pairs: &'a [(&'a str, &'a str)]) -> Self {
        Self(Box::new(move |name| {
            let pair = pairs.iter().find(|(other, _)| *other == name);
            pair.map(|(_, value)| (*value).to_owned())
        }))
    }

    /// The value of `name`, unless it is not set or empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub(super) fn required(&self, name: &'static str, expected: &str) -> Result<String, JobError> {
        let launcher = if name.starts_with("ULTIMA_") {
            ""
        } else {
            "; torchrun sets it"
        };
        self.get(name).ok_or_else(|| JobError::Variable {
            name,
            problem: format!("is not set: {expected}{launcher}"),
        })
    }

    pub(super) fn required_number<T: FromStr>(
        &self,
        name: &'static str,
        expected: &str,
    ) -> Result<T, JobError> {
        let text = self.required(name, expected)?;
        number(name, &text, expected)
    }

    /// The value as a number.
    pub(super) fn number<T: FromStr>(
        &self,
        name: &'static str,
        expected: &str,
    ) -> Result<Option<T>, JobError> {
        let text = self.get(name);
        text.map(|text| number(name, &text, expected)).transpose()
    }

    /// The value as 0 or 1.
    pub(super) fn flag(&self, name: &'static str) -> Result<Option<bool>, JobError> {
        match self.get(name).as_deref() {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(other) => Err(JobError::Variable {
                name,
                problem: format!("is {other:?}: expected 0 or 1"),
            }),
        }
    }

    /// The value as a type whose error says what is expected.
    pub(super) fn parsed<T: FromStr<Err = String>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, JobError> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let parsed = text.parse().map(Some);
        parsed.map_err(|problem| JobError::Variable { name, problem })
    }

    /// The TLS files for the controller, if they are set.
    pub(super) fn tls(&self) -> Result<Option<ClientTls>, JobError> {
        const CA: &str = "ULTIMA_TLS_CA";
        let Some(ca) = self.get(CA) else {
            return Ok(None);
        };
        let file =
            |name| self.required(name, "ULTIMA_TLS_CA is set, and TLS needs all three files");
        let identity = IdentityFiles {
            cert: file("ULTIMA_TLS_CERT")?.into(),
            key: file("ULTIMA_TLS_KEY")?.into(),
        };
        let tls = ClientTls::load(ca.as_ref(), Some(&identity));
        tls.map(Some).map_err(|error| JobError::Variable {
            name: CA,
            problem: format!("and the others for TLS: {error}"),
        })
    }

    /// The value as a number of seconds, with a fraction.
    pub(super) fn seconds(&self, name: &'static str) -> Result<Option<Duration>, JobError> {
        const EXPECTED: &str = "expected seconds, such as 0.5";
        let seconds: Option<f64> = self.number(name, EXPECTED)?;
        let Some(seconds) = seconds else {
            return Ok(None);
        };
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(JobError::Variable {
                name,
                problem: format!("is {seconds}: {EXPECTED}"),
            }),
        }
    }
}

fn number<T: FromStr>(name: &'static str, text: &str, expected: &str) -> Result<T, JobError> {
    text.parse().map_err(|_| JobError::Variable {
        name,
        problem: format!("is {text:?}: {expected}"),
    })
}
