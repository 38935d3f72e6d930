//! The metrics of one of several controllers. A standby exports these alone.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ultima_api::v1::{GetStandingResponse, Role};

/// A controller's role.
#[derive(Debug)]
pub(crate) struct RoleGauges(GetStandingResponse);

impl From<GetStandingResponse> for RoleGauges {
    fn from(standing: GetStandingResponse) -> Self {
        RoleGauges(standing)
    }
}

impl RoleGauges {
    /// Returns these metrics alone, for a standby.
    pub(crate) fn text(self) -> String {
        let mut registry = Registry::with_prefix(super::PREFIX);
        registry.register_collector(Box::new(self));
        super::encoded(&registry)
    }
}

impl Collector for RoleGauges {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let standing = &self.0;
        for (name, help, value) in [
            (
                "leads",
                "1 if the controller leads, 0 if it is a standby",
                u64::from(standing.role() == Role::Leader),
            ),
            (
                "knows_leader",
                "1 if the controller is a standby and etcd has a leader",
                u64::from(!standing.leader.is_empty()),
            ),
            (
                "election_revision",
                "Revision of etcd that elected this leader",
                standing.revision,
            ),
        ] {
            let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            to.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_its_metrics() {
        let leader = GetStandingResponse {
            role: Role::Leader.into(),
            revision: 7,
            ..GetStandingResponse::default()
        };
        let standby = GetStandingResponse {
            role: Role::Standby.into(),
            leader: "10.0.0.1:9555".into(),
            ..GetStandingResponse::default()
        };
        for (standing, lines) in [
            (leader, ["leads 1", "knows_leader 0", "election_revision 7"]),
            (
                standby,
                ["leads 0", "knows_leader 1", "election_revision 0"],
            ),
        ] {
            let text = RoleGauges::from(standing).text();
            for line in lines {
                let line = format!("\nultima_controller_{line}\n");
                assert!(text.contains(&line), "{line}: {text}");
            }
        }
    }
}
