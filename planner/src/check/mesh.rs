//! The paths that a check tests, their results, and those to examine.
//!
//! Testing all pairs grows with the square of the members. In a large job each member therefore
//! sends to only some others, so that packets and results grow linearly.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ultima_api::v1::{Heard, RoundReport};

use super::{Path, PathCount};
use crate::job::Rank;

/// Up to this many members send to all others. In a larger job each sends to one less than this,
/// and this many send to the group.
const ALL: usize = 64;

/// The reports of a round's members, by rank.
pub type Reports = BTreeMap<Rank, RoundReport>;

/// The paths tested between members.
#[derive(Clone, Copy, Debug)]
pub struct Mesh<'a> {
    /// The members, in rank order.
    pub ranks: &'a [Rank],
    /// True if they have a multicast group.
    pub has_group: bool,
}

impl Mesh<'_> {
    /// The receivers of the member at this position, in rank order: all others, or some at even
    /// distances, so that each member also receives from as many.
    pub fn receivers(&self, at: usize) -> Vec<Rank> {
        let all = self.ranks.len();
        let some = all.min(ALL);
        let apart = (1..some).map(|nth| nth * all / some);
        let mut to: Vec<Rank> = apart.map(|it| self.ranks[(at + it) % all]).collect();
        to.sort_unstable();
        to
    }

    /// True if the member at this position sends to the group.
    pub fn sends_to_group(&self, at: usize) -> bool {
        let all = self.ranks.len();
        // Checks that `at` is one of the positions `nth * all / ALL`.
        self.has_group && (all <= ALL || (at * ALL).div_ceil(all) * all / ALL == at)
    }

    /// The position of a member.
    pub fn place(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    fn paths(&self) -> impl Iterator<Item = Path> {
        let places = || self.ranks.iter().copied().enumerate();
        let one_by_one = places().flat_map(|(at, from)| {
            let to = self.receivers(at).into_iter();
            to.map(move |to| Path {
                from,
                to,
                by_group: false,
            })
        });
        let senders = places().filter(|(at, _)| self.sends_to_group(*at));
        let by_group = senders.flat_map(|(_, from)| {
            let others = self.ranks.iter().copied().filter(move |to| *to != from);
            others.map(move |to| Path {
                from,
                to,
                by_group: true,
            })
        });
        one_by_one.chain(by_group)
    }

    /// The result of every path, of `sent` short packets and as many full ones. Reports about other
    /// paths are ignored.
    pub fn results(&self, sent: u32, short_ones: &Reports, full_ones: &Reports) -> Vec<PathCount> {
        let silent = |path| PathCount {
            path,
            sent,
            short_received: 0,
            full_received: 0,
            hops: 0,
        };
        let mut results: Vec<PathCount> = self.paths().map(silent).collect();
        let numbers = results
            .iter()
            .enumerate()
            .map(|(at, result)| (result.path, at));
        let numbers: HashMap<Path, usize> = numbers.collect();
        for (reports, is_full) in [(short_ones, false), (full_ones, true)] {
            for (to, report) in reports {
                for heard in &report.heard {
                    let path = u16::try_from(heard.source).map(|from| Path {
                        from: Rank(from),
                        to: *to,
                        by_group: heard.by_group,
                    });
                    let Some(at) = path.ok().and_then(|path| numbers.get(&path)) else {
                        continue;
                    };
                    let result = &mut results[*at];
                    match is_full {
                        true => result.full_received = heard.packets,
                        false => (result.short_received, result.hops) = (heard.packets, heard.hops),
                    }
                }
            }
        }
        results
    }
}

/// A sender's silent unicast path, or all of its silent multicast paths: one round examines these
/// together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SilentPaths {
    /// The sender.
    pub from: Rank,
    /// True for the multicast paths.
    pub by_group: bool,
    /// True if only full packets are lost.
    pub full: bool,
    /// The receivers.
    pub to: BTreeSet<Rank>,
}

fn report_of(reports: &Reports, path: Path) -> Option<&Heard> {
    reports
        .get(&path.to)?
        .heard
        .iter()
        .find(|heard| heard.source == u32::from(path.from.0) && heard.by_group == path.by_group)
}

/// The packets that were received over a path.
pub fn received(reports: &Reports, path: Path) -> u32 {
    report_of(reports, path).map_or(0, |heard| heard.packets)
}

/// The silent paths to examine, by sender. Unicast paths are examined one at a time, so that counts
/// belong to one path.
pub fn silent_paths(results: &[PathCount]) -> BTreeSet<SilentPaths> {
    let mut by_group: BTreeMap<(Rank, bool), BTreeSet<Rank>> = BTreeMap::new();
    let mut all_silent = BTreeSet::new();
    for result in results
        .iter()
        .filter(|w| w.short_received == 0 || w.full_received == 0)
    {
        let full = result.short_received > 0;
        let Path { from, to, .. } = result.path;
        if result.path.by_group {
            by_group.entry((from, full)).or_default().insert(to);
        } else {
            all_silent.insert(SilentPaths {
                from,
                by_group: false,
                full,
                to: BTreeSet::from([to]),
            });
        }
    }
    all_silent.extend(by_group.into_iter().map(|((from, full), to)| SilentPaths {
        from,
        by_group: true,
        full,
        to,
    }));
    all_silent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(members: u16) -> Vec<Rank> {
        (0..members).map(Rank).collect()
    }

    #[test]
    fn few_members_send_to_all_others() {
        for members in [1, 2, 3, 63, 64] {
            let ranks = ranks(members);
            let mesh = Mesh {
                ranks: &ranks,
                has_group: true,
            };
            for (at, rank) in ranks.iter().enumerate() {
                let others = ranks.iter().copied().filter(|it| it != rank);
                assert!(
                    mesh.receivers(at).into_iter().eq(others),
                    "{rank} of {members}"
                );
                assert!(mesh.sends_to_group(at));
            }
        }
    }

    #[test]
    fn in_a_large_job_each_member_sends_to_and_receives_from_63() {
        for members in [65, 100, 127, 128, 1000, 4096] {
            let ranks = ranks(members);
            let mesh = Mesh {
                ranks: &ranks,
                has_group: true,
            };
            let mut heard = vec![0; ranks.len()];
            for (at, rank) in ranks.iter().enumerate() {
                let mut to = mesh.receivers(at);
                to.dedup();
                assert_eq!((to.len(), to.contains(rank)), (63, false));
                to.iter().for_each(|to| heard[usize::from(to.0)] += 1);
            }
            assert!(heard.iter().all(|heard| *heard == 63), "{members}");
            let senders = (0..ranks.len()).filter(|at| mesh.sends_to_group(*at));
            assert_eq!(senders.count(), 64, "{members}");
        }
    }

    /// 4,096 members: one path is silent, and one passes no full packets.
    #[test]
    fn silent_paths_are_found_among_many() {
        let ranks = ranks(4096);
        let mesh = Mesh {
            ranks: &ranks,
            has_group: true,
        };
        let path = |by_group| Path {
            from: ranks[0],
            to: mesh.receivers(0)[5],
            by_group,
        };
        let (silent, narrow) = (path(false), path(true));
        let reports = |lost: &[Path]| {
            let mut reports = Reports::new();
            for path in mesh.paths().filter(|path| !lost.contains(path)) {
                let report = reports.entry(path.to).or_default();
                report.heard.push(Heard {
                    source: path.from.0.into(),
                    by_group: path.by_group,
                    packets: 3,
                    hops: 2,
                });
            }
            // From an unknown rank, and from itself.
            for source in [u32::MAX, 9] {
                let heard = &mut reports.entry(Rank(9)).or_default().heard;
                heard.push(Heard {
                    source,
                    packets: 7,
                    ..Heard::default()
                });
            }
            reports
        };
        let results = mesh.results(3, &reports(&[silent]), &reports(&[silent, narrow]));
        assert_eq!(results.len(), 4096 * 63 + 64 * 4095);
        let lossy = results
            .iter()
            .filter(|result| result.short_received != 3 || result.full_received != 3);
        let lossy: Vec<_> = lossy
            .map(|result| {
                (
                    result.path,
                    result.short_received,
                    result.full_received,
                    result.hops,
                )
            })
            .collect();
        assert_eq!(lossy, [(silent, 0, 0, 0), (narrow, 3, 0, 2)]);
    }
}
