//! How one of several controllers stands, as Prometheus and OpenMetrics read it: also one that stands by has something to say.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::api::{GetStandingResponse, Role};

/// How one of several stands when it is asked.
#[derive(Debug)]
pub(crate) struct GroupStanding(GetStandingResponse);

impl From<GetStandingResponse> for GroupStanding {
    fn from(standing: GetStandingResponse) -> Self {
        GroupStanding(standing)
    }
}

impl GroupStanding {
    /// That alone, as of one that does not lead.
    pub(crate) fn text(self) -> String {
        let mut registry = Registry::with_prefix(super::PREFIX);
        registry.register_collector(Box::new(self));
        super::encoded(&registry)
    }
}

impl Collector for GroupStanding {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let standing = &self.0;
        let followers = &standing.followers;
        let up_to_date = followers.iter().filter(|it| it.behind == Some(0)).count();
        let term = standing.term.unwrap_or_default().number;
        let changes = standing.history.unwrap_or_default().changes;
        for (name, help, value) in [
            (
                "leads",
                "Whether it is primary, and leads more than half of the switches",
                u64::from(standing.role() == Role::Primary),
            ),
            (
                "follows",
                "Whether it stands by and copies what a primary promises",
                u64::from(!standing.primary.is_empty()),
            ),
            ("term", "The term that it leads in, or has accepted", term),
            ("changes", "Changes that its store has seen", changes),
            (
                "followers",
                "Controllers that follow it, as a primary",
                followers.len() as u64,
            ),
            (
                "followers_up_to_date",
                "Those that have stored all that it has",
                up_to_date as u64,
            ),
            (
                "followers_needed",
                "Controllers that are to have stored what a primary promises, besides itself",
                standing.copies.into(),
            ),
        ] {
            let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            to.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        let help = "Changes that one that follows has not stored yet; of one that still copies all there is none";
        let mut to = to.encode_descriptor("follower_behind", help, None, MetricType::Gauge)?;
        for follower in followers {
            let Some(behind) = follower.behind else {
                continue;
            };
            let number = format!("{:08x}", follower.controller);
            to.encode_family(&[("controller", number.as_str())])?
                .encode_gauge(&i64::try_from(behind).unwrap_or(i64::MAX))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Follower, Term};

    #[test]
    fn one_that_stands_by_says_how_it_stands() {
        let follower = |controller, behind| Follower { controller, behind };
        let standing = GetStandingResponse {
            role: Role::Primary.into(),
            term: Some(Term {
                number: 7,
                controller: 1,
            }),
            copies: 2,
            followers: vec![
                follower(1, Some(0)),
                follower(0xab, Some(3)),
                follower(2, None),
            ],
            ..GetStandingResponse::default()
        };
        let says = |standing: GetStandingResponse, lines: &[&str]| {
            let text = GroupStanding::from(standing).text();
            for line in lines {
                assert!(
                    text.contains(&format!("\nultima_controller_{line}\n")),
                    "{line}: {text}"
                );
            }
        };
        says(
            standing,
            &[
                "leads 1",
                "follows 0",
                "term 7",
                "followers 3",
                "followers_up_to_date 1",
                "followers_needed 2",
                r#"follower_behind{controller="000000ab"} 3"#,
            ],
        );
        let standby = GetStandingResponse {
            role: Role::Standby.into(),
            primary: "10.0.0.1:9555".into(),
            ..GetStandingResponse::default()
        };
        says(standby, &["leads 0", "follows 1", "followers 0"]);
    }
}
