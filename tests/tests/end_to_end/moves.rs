//! A spine fails: multicast and unicast of a job take another path.

use ultima_tests::fabric::Fabric;
use ultima_tests::stage::Target;

const TRAIN: &str = "{ name: train, members: [h1, h2, h3, h4] }";
/// The spine of the first job's tree.
const SPINE: usize = 2;

#[test]
fn a_job_takes_another_spine_when_its_spine_fails() {
    Target::Sockets.run(Fabric::spines(), &[TRAIN], |mut stage| {
        let job = stage.jobs[0].clone();
        // Hosts on different leaves.
        let ends = [job.host_of(0), job.host_of(2)];
        let gather =
            |mark: &str, number: u32| job.gather(0, format!("{mark} {number}").as_bytes()).emit();
        let has =
            |frame: &[u8], mark: &str| frame.windows(mark.len()).any(|it| it == mark.as_bytes());
        stage.testbed.send_until(
            ends,
            |number| gather("whole", number),
            |it| has(it, "whole"),
        );
        stage.testbed.kill(SPINE);
        let interrupted = stage.testbed.send_until(
            ends,
            |number| gather("rerouted", number),
            |it| has(it, "rerouted"),
        );
        eprintln!("GATHER arrived again {interrupted:?} after its spine was killed");
        // Unicast between members, which used either spine.
        for to in [2, 3] {
            let ends = [job.host_of(0), job.host_of(to)];
            let scatter = |number: u32| {
                job.scatter(0, to, format!("unicast {number}").as_bytes())
                    .emit()
            };
            stage
                .testbed
                .send_until(ends, scatter, |it| has(it, "unicast"));
        }
    });
}
