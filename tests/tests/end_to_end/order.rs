//! Switches keep the order of a host's packets in every queue.

use ultima_tests::fabric::HostId;
use ultima_tests::stage::Target;

/// The number of slots that a rank multicasts in a row.
const SLOTS: u32 = 500;

fn packets_keep_their_order(target: &Target) {
    target.pair(|mut stage| {
        let job = stage.jobs[0].clone();
        let source = 2;
        let slots: Vec<_> = (0..SLOTS)
            .map(|slot| {
                let mut header = job.header(ultima_wire::Kind::Gather, source, source);
                header.slot = slot;
                job.gather(source, b"data").with_header(&header)
            })
            .collect();
        let frames: Vec<Vec<u8>> = slots.iter().map(|slot| slot.emit()).collect();
        let arrivals = stage.testbed.exchange(job.host_of(source), &frames);

        for rank in job.ranks().filter(|rank| *rank != source) {
            let host: HostId = job.host_of(rank);
            let hops = stage.testbed.fabric.hops(job.host_of(source), host);
            let expected: Vec<Vec<u8>> = slots
                .iter()
                .map(|slot| {
                    let copy = job.copy_for(slot, rank);
                    let further = (1..hops).fold(copy, |copy, _| copy.forwarded(copy.dst_mac));
                    further.emit()
                })
                .collect();
            // Copies for other ranks arrive at the same host.
            let port = job.members[usize::from(rank)].address.port().to_be_bytes();
            let arrived = arrivals[&host].iter().filter(|frame| frame[36..38] == port);
            assert!(arrived.eq(&expected), "rank {rank}");
        }
    });
}

on_both! {
    packets_keep_their_order;
}
