//! The result of `ultima fabric plan`: the effect of a change before it is made.

use std::borrow::Cow;

use crate::v1 as api;
use serde::Serialize;

use super::apply::{Action, Applied};
use super::fabric::Difference;
use super::job::Job;

/// A plan.
#[derive(Serialize)]
pub struct Plan<'a> {
    pub jobs: Vec<PlannedJob<'a>>,
    pub switches: Vec<PlannedSwitch<'a>>,
}

#[derive(Serialize)]
pub struct PlannedJob<'a> {
    pub name: &'a str,
    /// The action of `ultima apply`, if the plan is for a file of jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub rejection: Cow<'a, str>,
    /// Switches of its tree without members: spines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transit_switches: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job<'a>>,
}

#[derive(Serialize)]
pub struct PlannedSwitch<'a> {
    pub switch: &'a str,
    pub added: bool,
    pub removed: bool,
    /// Why the controller is not connected to it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub problem: &'a str,
    pub differences: Vec<Difference<'a>>,
    pub usage: Vec<Usage<'a>>,
}

#[derive(Serialize)]
pub struct Usage<'a> {
    pub resource: &'a str,
    pub before: u64,
    pub after: u64,
    pub limit: u64,
}

impl<'a> From<&'a api::PlanResponse> for Plan<'a> {
    fn from(plan: &'a api::PlanResponse) -> Self {
        let jobs = plan.jobs.iter().map(|it| PlannedJob {
            name: &it.name,
            action: None,
            rejection: it.refusal.as_str().into(),
            transit_switches: it.job.as_ref().map(transit_switches),
            job: it.job.as_ref().map(Into::into),
        });
        let switches = plan.switches.iter().map(|it| PlannedSwitch {
            switch: &it.switch,
            added: !it.is_there,
            removed: !it.remaining,
            problem: &it.problem,
            differences: it.differences.iter().map(Into::into).collect(),
            usage: (it.fills.iter())
                .map(|fill| Usage {
                    resource: &fill.of,
                    before: fill.before,
                    after: fill.after,
                    limit: fill.limit,
                })
                .collect(),
        });
        Self {
            jobs: jobs.collect(),
            switches: switches.collect(),
        }
    }
}

/// The switches of a job's tree that have none of its members.
fn transit_switches(job: &api::Job) -> Vec<&str> {
    let has_members = |switch: &str| job.members.iter().any(|member| member.switch == switch);
    let in_tree = |switch: &str| {
        let mut links = job.tree.iter();
        links.any(|link| link.from == switch || link.to == switch)
    };
    (job.switches.iter().map(String::as_str))
        .filter(|switch| !has_members(switch) && in_tree(switch))
        .collect()
}

impl<'a> Plan<'a> {
    /// Adds the actions of `ultima apply`, unchanged jobs included.
    pub fn with(mut self, jobs: &'a [Applied]) -> Self {
        for job in jobs {
            match self.jobs.iter_mut().find(|it| it.name == job.name) {
                Some(planned) => planned.action = Some(job.action),
                None => self.jobs.push(PlannedJob {
                    name: &job.name,
                    action: Some(job.action),
                    rejection: job.rejection().unwrap_or_default().into(),
                    transit_switches: None,
                    job: None,
                }),
            }
        }
        self
    }
}
