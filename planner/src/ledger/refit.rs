//! Refits jobs to changed routes.

use ultima_p4runtime::names::Names;

use super::{Ledger, cut_off, largest_part, no_tree};
use crate::fabric::{Fabric, Health};
use crate::job::{Job, JobId, Multicast, Rank, Refusal};
use crate::plan::{JobPaths, JobPlan};
use crate::routing::Routes;
use crate::tree::JobTree;

/// A job after a change of routes.
#[derive(Clone, Debug)]
pub struct Refitted {
    /// The job.
    pub job: Job,
    /// Its new plan.
    pub plan: JobPlan,
    /// Members that some others cannot reach; their paths are kept.
    pub cut_off: Vec<Rank>,
    /// The reason why the job keeps its tree although part of that is down.
    pub stays: Option<Refusal>,
}

impl Ledger {
    /// Refits a job to the current routes and takes the resources of its new plan.
    ///
    /// The job keeps its tree if all of it is up and joins all reachable members, and it keeps the
    /// index of each port that it still uses. If some members are cut off, the job keeps its tree
    /// as long as that joins the largest part of them, and it keeps the paths to the others, so
    /// that it loses no more than the failure itself takes.
    ///
    /// If there is no other tree, or no room for one, the job keeps its tree. Its unicast packets
    /// follow the new routes in any case, because all jobs share the routes.
    ///
    /// Returned resources are free for other jobs only after [`free_returned`](Self::free_returned).
    ///
    /// # Errors
    /// There is no room even with the old tree; the job keeps its plan.
    pub fn refit(
        &mut self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        job: &Job,
        plan: &JobPlan,
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

    /// Frees the returned resources, after all jobs have their new plans.
    pub fn free_returned(&mut self) {
        self.moving.clear();
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

    /// The job on these routes; for unreachable hosts it uses the [held](Routes::held) routes.
    fn planned(
        &self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        job: Job,
    ) -> Result<(Job, JobPlan), Refusal> {
        let paths = JobPaths::new(fabric, routes, &job.members, job.tree());
        self.plan(fabric, names, job, &paths)
    }

    /// The job with its current tree, if that is usable and there is room.
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

    /// The job with a tree that is up. If some members are cut off, the tree joins the others.
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
                let other = JobTree::choose(fabric, routes, &self.load, job.policy.weight, &homes);
                *tree = other.ok_or_else(|| no_tree(fabric, &job.members))?;
            }
        }
        Ok(job)
    }

    /// Restores stored jobs: they get their indices back before any of them gets a new one, and
    /// then their plans for the current routes. New ids follow `last`.
    ///
    /// # Errors
    /// The first job without room, by its index in `jobs`.
    pub fn restore(
        &mut self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        jobs: &[Job],
        last: JobId,
    ) -> Result<Vec<Refitted>, (usize, Refusal)> {
        let jobs = super::restore::unique(fabric, jobs);
        let nothing = JobPlan::new();
        jobs.iter().for_each(|job| self.take(fabric, job, &nothing));
        self.last = last;
        // Restores the old resources first, so that no job takes those of one that cannot be
        // rerouted.
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
            let refitted = self.refit(fabric, routes, names, &job, &plan);
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
        self.free_returned();
        restored
    }
}
