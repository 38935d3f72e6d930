//! The result of `ultima fabric plan`: the effect of a change before it is made.

use std::borrow::Cow;

use serde::Serialize;
use ultima_api::v1 as api;

use super::applied::{Action, Applied};
use super::fabric::Difference;
use super::job::Job;
use ultima_console::output::table;
use ultima_console::units::counted;

/// A plan.
#[derive(Serialize)]
pub struct Plan<'a> {
    jobs: Vec<PlannedJob<'a>>,
    switches: Vec<PlannedSwitch<'a>>,
}

#[derive(Serialize)]
struct PlannedJob<'a> {
    name: &'a str,
    /// The action of `ultima apply`, if the plan is for a file of jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
    #[serde(skip_serializing_if = "str::is_empty")]
    rejection: Cow<'a, str>,
    /// Switches of its tree without members: spines.
    #[serde(skip_serializing_if = "Option::is_none")]
    transit_switches: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<Job<'a>>,
}

#[derive(Serialize)]
struct PlannedSwitch<'a> {
    switch: &'a str,
    added: bool,
    removed: bool,
    /// Why the controller is not connected to it.
    #[serde(skip_serializing_if = "str::is_empty")]
    problem: &'a str,
    differences: Vec<Difference<'a>>,
    usage: Vec<Usage<'a>>,
}

#[derive(Serialize)]
struct Usage<'a> {
    resource: &'a str,
    before: u64,
    after: u64,
    limit: u64,
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

    /// The jobs with their trees, the changes on each switch as `diff` prints them, and a table of the resources whose usage changes.
    pub fn text(&self) -> String {
        let mut text: String = self.jobs.iter().map(PlannedJob::text).collect();
        text.extend(self.switches.iter().map(PlannedSwitch::text));
        let rows = self.switches.iter().flat_map(|switch| {
            let changed = switch.usage.iter().filter(|it| it.before != it.after);
            changed.map(|it| {
                [
                    switch.switch.to_owned(),
                    it.resource.to_owned(),
                    it.before.to_string(),
                    it.after.to_string(),
                    it.limit.to_string(),
                ]
            })
        });
        let rows: Vec<[String; 5]> = rows.collect();
        match rows.is_empty() {
            true => text,
            false => {
                let header = ["SWITCH", "RESOURCE", "BEFORE", "AFTER", "LIMIT"];
                text + "\n" + &table(header, rows.into_iter())
            }
        }
    }
}

impl PlannedJob<'_> {
    fn text(&self) -> String {
        let name = self.name;
        if !self.rejection.is_empty() {
            return format!("{name}: would be rejected: {}\n", self.rejection);
        }
        let action = self.action.map(Action::text);
        let Some(job) = &self.job else {
            return format!("{name}: {}\n", action.unwrap_or_default());
        };
        let action = action.map_or_else(String::new, |action| format!("{action}, "));
        let mut text = format!(
            "{name}: {action}id {} on {}",
            job.id,
            job.switches.join(", ")
        );
        if !job.tree.is_empty() {
            text += &format!("; tree {}", job.tree.join(", "));
        }
        match self.transit_switches.as_deref().unwrap_or_default() {
            [] => {}
            switches => text += &format!("; via {}", switches.join(", ")),
        }
        text + "\n"
    }
}

impl PlannedSwitch<'_> {
    fn text(&self) -> String {
        let switch = self.switch;
        let head = match (self.added, self.removed, self.differences.len()) {
            (_, true, _) => {
                format!("{switch}: removed from the fabric; its entries stay on the switch\n")
            }
            (true, ..) => format!(
                "{switch}: added to the fabric; the controller installs Ultima's P4 program there, or leaves it alone if it runs another (--replace-pipeline)\n"
            ),
            (_, _, 0) => format!("{switch}: no changes\n"),
            (_, _, count) => format!("{switch}: {}\n", counted(count, "change")),
        };
        let problem = match self.problem {
            "" => String::new(),
            problem => format!("{switch}: not connected: {problem}\n"),
        };
        let changes = self.differences.iter().map(Difference::text);
        problem + &head + &changes.collect::<String>()
    }
}
