//! What becomes of jobs when routes change.

use ultima_p4runtime::names::Names;

use super::{Ledger, Refusal, cut_off, largest_part, unreachable};
use crate::fabric::{Fabric, Health};
use crate::job::{Job, JobId, Multicast, Rank};
use crate::plan::{JobPlan, Ways};
use crate::routing::Routes;
use crate::tree::JobTree;

/// What a job has become.
#[derive(Clone, Debug)]
pub struct Refitted {
    /// The job.
    pub job: Job,
    /// What it needs now.
    pub plan: JobPlan,
    /// Members that some others cannot reach: their ways are kept.
    pub cut_off: Vec<Rank>,
    /// Why its tree is the one that it had, although something of that is down.
    pub stays: Option<Refusal>,
}

impl Ledger {
    /// What a job becomes on the routes as they are now, which it takes from now on, and what it needs then. It keeps its tree
    /// if all of that is up and reaches all members that can be reached, and every number of a port that it still
    /// leaves by. A job whose members cannot all reach each other keeps its tree as long as that joins the largest part of them, and its
    /// ways to those that are cut off: nobody loses more than what is down takes away.
    ///
    /// Where there is no room for another tree, or none, it keeps the one that it has, and goes the new ways all the same from one
    /// member to another: routes are everybody's.
    ///
    /// What jobs give back is given to others only when all are [settled](Self::settle).
    ///
    /// # Errors
    /// There is no room for that either: it keeps all that it has.
    pub fn refit(
        &mut self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        (job, plan): (&Job, &JobPlan),
    ) -> Result<Refitted, Refusal> {
        self.remove(fabric, job, plan);
        let shares = job.shares.iter();
        let numbers = shares.map(|(at, share)| (at.switch, *share));
        self.moving.extend(numbers);
        let refitted = self.fitting(fabric, routes, names, job);
        match &refitted {
            Ok(refitted) => self.take(fabric, &refitted.job, &refitted.plan),
            Err(_) => self.take(fabric, job, plan),
        }
        refitted
    }

    /// All jobs have what they are to have: what they had before is free.
    pub fn settle(&mut self) {
        self.moving.clear();
    }

    /// A job that is planned otherwise from now on, whatever there is room for: it is so already.
    pub fn replace(
        &mut self,
        fabric: &Fabric,
        (job, plan): (&Job, &JobPlan),
        (new_job, new_plan): (&Job, &JobPlan),
    ) {
        self.remove(fabric, job, plan);
        self.take(fabric, new_job, new_plan);
    }

    fn fitting(
        &self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        job: &Job,
    ) -> Result<Refitted, Refusal> {
        let cut_off = cut_off(fabric, routes, &job.members);
        let cut_off: Vec<Rank> = cut_off.into_iter().map(|(rank, _)| rank).collect();
        let moved = self.regrown(fabric, routes, job, !cut_off.is_empty());
        let moved = moved.and_then(|job| self.planned(fabric, routes, names, job));
        let ((job, plan), stays) = match moved {
            Ok(moved) => (moved, None),
            Err(refusal) => match self.staying(fabric, routes, names, job) {
                Some(stays) => (stays, Some(refusal)),
                None => return Err(refusal),
            },
        };
        Ok(Refitted {
            job,
            plan,
            cut_off,
            stays,
        })
    }

    /// A job as it is on these routes; those that lead nowhere are [as when all is well](Routes::held).
    fn planned(
        &self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        job: Job,
    ) -> Result<(Job, JobPlan), Refusal> {
        let ways = Ways::held(fabric, routes, &job.members, job.tree());
        self.plan(fabric, names, job, &ways)
    }

    /// A job with the tree that it has, if that is one and there is room.
    fn staying(
        &self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        job: &Job,
    ) -> Option<(Job, JobPlan)> {
        let homes = super::homes(fabric, &job.members);
        let tree = job.tree();
        if tree.is_some_and(|tree| !tree.joins(fabric, &Health::default(), &homes)) {
            return None;
        }
        self.planned(fabric, routes, names, job.clone()).ok()
    }

    /// A job with a tree that is up; if some members are cut off, with one that joins the others.
    fn regrown(
        &self,
        fabric: &Fabric,
        routes: &Routes,
        job: &Job,
        is_cut: bool,
    ) -> Result<Job, Refusal> {
        let mut job = job.clone();
        if let Some(Multicast { tree, .. }) = &mut job.multicast {
            let homes = largest_part(fabric, routes, &job.members);
            let health = routes.health();
            let is_good = match is_cut {
                true => tree.joins(fabric, health, &homes),
                false => {
                    homes.iter().all(|home| tree.contains(*home)) && tree.is_up(fabric, health)
                }
            };
            if !is_good {
                let other = JobTree::choose(fabric, routes, &self.load, job.weight, &homes);
                *tree = other.ok_or_else(|| unreachable(fabric, &job.members))?;
            }
        }
        Ok(job)
    }

    /// Jobs that were kept have their numbers again, before any is given another one, and then what they need on the routes
    /// as they are now. Ids are given out from behind `last` on.
    ///
    /// # Errors
    /// The first job that has no place any more, by its place in `jobs`.
    pub fn restore(
        &mut self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        (jobs, last): (&[Job], JobId),
    ) -> Result<Vec<Refitted>, (usize, Refusal)> {
        let jobs = super::restore::unique(fabric, jobs);
        let nothing = JobPlan::new();
        jobs.iter().for_each(|job| self.take(fabric, job, &nothing));
        self.last = last;
        // First what they had: one that could not move must not find others in its place.
        let well = Routes::new(fabric, Health::default());
        let mut had: Vec<(Job, JobPlan)> = Vec::with_capacity(jobs.len());
        for job in jobs {
            self.remove(fabric, &job, &nothing);
            let stays = self.staying(fabric, routes, names, &job);
            let stays = stays.or_else(|| self.staying(fabric, &well, names, &job));
            let (job, plan) = stays.unwrap_or_else(|| (job, nothing.clone()));
            self.take(fabric, &job, &plan);
            had.push((job, plan));
        }
        let refit = |(at, (job, plan)): (usize, (Job, JobPlan))| {
            let refitted = self.refit(fabric, routes, names, (&job, &plan));
            refitted.or_else(|refusal| match plan.is_empty() {
                true => Err((at, refusal)),
                false => Ok(Refitted {
                    cut_off: Vec::new(),
                    stays: Some(refusal),
                    job,
                    plan,
                }),
            })
        };
        let restored = had.into_iter().enumerate().map(refit).collect();
        self.settle();
        restored
    }
}
