//! The metrics of a controller in a group. A standby exports these alone.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ultima_api::v1::{GetStandingResponse, Role};

/// A controller's state in its group.
#[derive(Debug)]
pub(crate) struct GroupStanding(GetStandingResponse);

impl From<GetStandingResponse> for GroupStanding {
    fn from(standing: GetStandingResponse) -> Self {
        GroupStanding(standing)
    }
}

impl GroupStanding {
    /// Returns these metrics alone, for a standby.
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
                "1 if the controller leads: it is primary at more than half of the switches",
                u64::from(standing.role() == Role::Leader),
            ),
            (
                "follows",
                "1 if the controller is a standby and copies the leader's changes",
                u64::from(!standing.leader.is_empty()),
            ),
            (
                "term",
                "Term in which the controller leads, or that it has accepted",
                term,
            ),
            ("changes", "Changes in the controller's store", changes),
            (
                "followers",
                "Standbys that follow this leader",
                followers.len() as u64,
            ),
            (
                "followers_up_to_date",
                "Followers whose store is up to date",
                up_to_date as u64,
            ),
            (
                "followers_needed",
                "Followers that must have stored a change before it is committed",
                standing.copies.into(),
            ),
        ] {
            let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            to.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        let help =
            "Changes that a follower has not stored yet; absent while it copies the whole store";
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
    use ultima_api::v1::{Follower, Term};

    use super::*;

    #[test]
    fn standbys_export_the_group_metrics() {
        let follower = |controller, behind| Follower { controller, behind };
        let standing = GetStandingResponse {
            role: Role::Leader.into(),
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
            leader: "10.0.0.1:9555".into(),
            ..GetStandingResponse::default()
        };
        says(standby, &["leads 0", "follows 1", "followers 0"]);
    }
}
