//! Large writes and reads while packets flow, without packet loss.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::served::common::{Controller, Testbed, base_config, controller_program, packets};
use ultima_p4runtime::v1::{TableEntry, Update};
use ultima_switch::WireConfig;

/// Entries that each round inserts, modifies or deletes.
const ENTRIES: u64 = 10_000;
/// Updates of one batch.
const BATCH: usize = 500;
/// Frames in flight at once: far fewer than the queues hold.
const WINDOW: u64 = 32;
/// The entry that the frames hit.
const FLOW: u64 = 0x0200_0000_0001;

fn entry(testbed: &Testbed, dst: u64, port: u16) -> TableEntry {
    let table = testbed.names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", dst).expect("key");
    let entry = entry.action("IngressPipe.send", &[("port", port.into())]);
    entry.expect("action").build().expect("entry")
}

fn frame(number: u64) -> Vec<u8> {
    let mut frame = FLOW.to_be_bytes()[2..].to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// Sends 30,000 updates in batches, and reads all entries after each round.
async fn work(testbed: &Testbed, controller: &mut Controller) {
    let keys: Vec<u64> = (1..=ENTRIES).map(|n| n << 8).collect();
    let updates: [fn(TableEntry) -> Update; 3] = [Update::insert, Update::modify, Update::delete];
    // Entries after each round.
    let left = [keys.len(), keys.len(), 0];
    for ((update, port), left) in updates.into_iter().zip([1, 2, 2]).zip(left) {
        for keys in keys.chunks(BATCH) {
            let updates = keys.iter().map(|key| update(entry(testbed, *key, port)));
            let done = controller.write(updates.collect());
            done.await.expect("all succeed");
        }
        let all = controller.read(vec![TableEntry::default().into()]).await;
        assert_eq!(all.expect("read").len(), left + 1, "with the flow's entry");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_packet_is_lost_while_tables_are_written_and_read() {
    let wires = vec![WireConfig::default(); 2];
    let testbed = Testbed::with_program(base_config(), controller_program(), wires).await;
    let mut controller = testbed.controller().await;
    controller
        .insert(vec![entry(&testbed, FLOW, 2).into()])
        .await;
    let enough = AtomicBool::new(false);
    let (sender, receiver) = (&testbed.peers[&1], &testbed.peers[&2]);
    let sent = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut sent = 0;
            while !enough.load(Ordering::Relaxed) {
                for number in sent..sent + WINDOW {
                    sender.send(&frame(number));
                }
                for number in sent..sent + WINDOW {
                    assert_eq!(receiver.receive(), frame(number), "in order, none missing");
                }
                sent += WINDOW;
            }
            sent
        });
        let _done = SetOnDrop(&enough);
        let handle = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| handle.block_on(work(&testbed, &mut controller)));
        enough.store(true, Ordering::Relaxed);
        traffic.join().expect("no packet is lost")
    });
    let port = testbed.until_drained(2, sent).await;
    assert_eq!(packets(&port.left), sent);
}

/// Sets a flag on drop, also in a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
