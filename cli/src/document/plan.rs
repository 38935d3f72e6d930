//! What a change would do.

use std::borrow::Cow;

use serde::Serialize;
use ultima_controller::api;

use super::applied::{Action, Applied};
use super::fabric::Difference;
use super::job::Job;
use ultima_console::output::table;

/// What a change would do.
#[derive(Serialize)]
pub struct Plan<'a> {
    jobs: Vec<PlannedJob<'a>>,
    switches: Vec<PlannedSwitch<'a>>,
}

#[derive(Serialize)]
struct PlannedJob<'a> {
    name: &'a str,
    /// What would be done about it, of those of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
    #[serde(skip_serializing_if = "str::is_empty")]
    refusal: Cow<'a, str>,
    /// Switches of its tree on which it has no members: spines.
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<Job<'a>>,
}

#[derive(Serialize)]
struct PlannedSwitch<'a> {
    switch: &'a str,
    comes: bool,
    goes: bool,
    differences: Vec<Difference<'a>>,
    fills: Vec<Fill<'a>>,
}

#[derive(Serialize)]
struct Fill<'a> {
    of: &'a str,
    before: u64,
    after: u64,
    limit: u64,
}

impl<'a> From<&'a api::PlanResponse> for Plan<'a> {
    fn from(plan: &'a api::PlanResponse) -> Self {
        let jobs = plan.jobs.iter().map(|it| PlannedJob {
            name: &it.name,
            action: None,
            refusal: it.refusal.as_str().into(),
            over: it.job.as_ref().map(junctions),
            job: it.job.as_ref().map(Into::into),
        });
        let switches = plan.switches.iter().map(|it| PlannedSwitch {
            switch: &it.switch,
            comes: !it.is_there,
            goes: !it.stays,
            differences: it.differences.iter().map(Into::into).collect(),
            fills: (it.fills.iter())
                .map(|fill| Fill {
                    of: &fill.of,
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

/// The switches of a job's tree on which none of its members sits.
fn junctions(job: &api::Job) -> Vec<&str> {
    let is_home = |switch: &str| job.members.iter().any(|member| member.switch == switch);
    let in_tree = |switch: &str| {
        let mut links = job.tree.iter();
        links.any(|link| link.from == switch || link.to == switch)
    };
    (job.switches.iter().map(String::as_str))
        .filter(|switch| !is_home(switch) && in_tree(switch))
        .collect()
}

impl<'a> Plan<'a> {
    /// The same with what would be done about jobs, those included about which that is nothing.
    pub fn with(mut self, jobs: &'a [Applied]) -> Self {
        for job in jobs {
            match self.jobs.iter_mut().find(|it| it.name == job.name) {
                Some(planned) => planned.action = Some(job.action),
                None => self.jobs.push(PlannedJob {
                    name: &job.name,
                    action: Some(job.action),
                    refusal: job.refusal().unwrap_or_default().into(),
                    over: None,
                    job: None,
                }),
            }
        }
        self
    }

    /// Jobs with their trees, what changes on switches as `diff` has it, and what gets fuller or emptier.
    pub fn text(&self) -> String {
        let mut text: String = self.jobs.iter().map(PlannedJob::text).collect();
        text.extend(self.switches.iter().map(PlannedSwitch::text));
        let rows = self.switches.iter().flat_map(|switch| {
            let changed = switch.fills.iter().filter(|fill| fill.before != fill.after);
            changed.map(|fill| {
                [
                    switch.switch.to_owned(),
                    fill.of.to_owned(),
                    fill.before.to_string(),
                    fill.after.to_string(),
                    fill.limit.to_string(),
                ]
            })
        });
        let rows: Vec<[String; 5]> = rows.collect();
        match rows.is_empty() {
            true => text,
            false => {
                let header = ["SWITCH", "OF", "NOW", "THEN", "LIMIT"];
                text + "\n" + &table(header, rows.into_iter())
            }
        }
    }
}

impl PlannedJob<'_> {
    fn text(&self) -> String {
        let name = self.name;
        if !self.refusal.is_empty() {
            return format!("{name} would be refused: {}\n", self.refusal);
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
        match self.over.as_deref().unwrap_or_default() {
            [] => {}
            over => text += &format!("; over {}", over.join(", ")),
        }
        text + "\n"
    }
}

impl PlannedSwitch<'_> {
    fn text(&self) -> String {
        let switch = self.switch;
        let head = match (self.comes, self.goes, self.differences.len()) {
            (_, true, _) => format!("{switch}: goes, and keeps what it holds\n"),
            (true, ..) => format!("{switch}: comes\n"),
            (_, _, 0) => format!("{switch}: nothing changes\n"),
            (_, _, 1) => format!("{switch}: 1 change\n"),
            (_, _, count) => format!("{switch}: {count} changes\n"),
        };
        let changes = self.differences.iter().map(Difference::text);
        head + &changes.collect::<String>()
    }
}
