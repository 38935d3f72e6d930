//! Jobs of several ranks on loopback, with real sockets.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ultima_agent::Settings;
use ultima_agent::job::{Addresses, Job, JobBuilder, JobError, Refusal, Rendezvous, TcpStore};
use ultima_host::{Error, Estimation, Preset, Rejection, Timeouts};
use ultima_testing::skipped;
use ultima_testing::veth::Veth;
use ultima_wire::{Header, Kind};

/// Long enough for any operation on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// An address on loopback that only one test uses, so that its ports stay free.
fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::new(127, 64 + high % 128, low, number)
}

/// Free addresses on loopback, one per rank.
pub(crate) fn addresses(ranks: usize) -> Vec<SocketAddr> {
    let ip = own_ip();
    let bind = || UdpSocket::bind((ip, 0)).expect("binds");
    let sockets: Vec<UdpSocket> = (0..ranks).map(|_| bind()).collect();
    let address = |socket: &UdpSocket| socket.local_addr().expect("an address");
    sockets.iter().map(address).collect()
}

/// A host and a free TCP port.
fn free_port() -> (String, u16) {
    let ip = own_ip();
    let listener = TcpListener::bind((ip, 0)).expect("binds");
    let port = listener.local_addr().expect("an address").port();
    (ip.to_string(), port)
}

pub(crate) fn builder(rendezvous: impl Rendezvous + 'static) -> JobBuilder {
    let builder = Job::builder().rendezvous(rendezvous);
    builder.deadline(DEADLINE).timeout(DEADLINE)
}

/// Runs `run` for each rank on a thread of its own, and returns what each returns.
pub(crate) fn on_threads<T: Send + 'static>(
    ranks: usize,
    run: impl Fn(usize) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let start = |rank| {
        let run = run.clone();
        thread::spawn(move || run(rank))
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    let joined = threads.into_iter().map(|thread| thread.join());
    joined.map(|result| result.expect("no panic")).collect()
}

/// Starts a job of `ranks` at fixed addresses, and runs `run` at each rank.
fn at_addresses<T: Send + 'static>(
    ranks: usize,
    run: impl Fn(Job) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let addresses = addresses(ranks);
    on_threads(ranks, move |rank| {
        let rendezvous = Addresses::new(rank, addresses.clone());
        run(builder(rendezvous).start().expect("it starts"))
    })
}

fn is_near(values: &[f32], expected: f32) -> bool {
    values.iter().all(|value| (value - expected).abs() < 1e-4)
}

/// Lengths with other numbers of packets, with as many, with the same padding, and in parts.
#[test]
fn vectors_of_different_lengths_are_an_error_at_every_rank() {
    for len in [10, 1000, 2000, 100_000, 1_500_000] {
        for longer in [1, len / 2] {
            at_addresses(3, move |job| {
                let is_longer = usize::from(job.rank() == 1);
                let mean = job.all_reduce(vec![1.0; len + longer * is_longer]).wait();
                let error = mean.expect_err("the lengths differ").to_string();
                let expected = match is_longer {
                    0 => "step 0 bucket 0: packets of rank 1 belong to another operation",
                    _ => "step 0 bucket 0: packets of rank ",
                };
                assert!(error.starts_with(expected), "{error}");
                assert!(error.ends_with("with arrays of the same length"), "{error}");
            });
        }
    }
}

#[test]
fn buckets_are_in_flight_together_and_results_in_any_order() {
    at_addresses(4, |job| {
        let rank = f32::from(job.rank());
        for step in 0..3u16 {
            let start = |bucket: u16| {
                let value = rank + f32::from(10 * bucket + 100 * step);
                let len = 1000 * usize::from(bucket + 1);
                job.all_reduce_bucket(bucket, vec![value; len])
            };
            let pending: Vec<_> = (0..3).map(|bucket| (bucket, start(bucket))).collect();
            for (bucket, pending) in pending.into_iter().rev() {
                let mean = pending.wait().expect("it ends");
                assert_eq!(
                    (mean.outcome.id.step, mean.outcome.id.bucket),
                    (step.into(), bucket)
                );
                assert!(mean.outcome.is_whole(), "{:?}", mean.outcome);
                let expected = 1.5 + f32::from(10 * bucket + 100 * step);
                assert!(is_near(&mean.values, expected), "{:?}", &mean.values[..4]);
            }
        }
        // Each call is a step; only one step is on the network at a time.
        let pending: Vec<_> = (0..5).map(|_| job.all_reduce(vec![rank; 5000])).collect();
        let mut buffer = vec![0.0; 5000];
        for pending in pending {
            pending.wait_into(&mut buffer).expect("it ends");
            assert!(is_near(&buffer, 1.5));
        }
    });
}

#[test]
fn exact_operations_give_every_rank_the_same_bits() {
    at_addresses(3, |job| {
        let rank = f32::from(job.rank());
        let mean = job.all_reduce(vec![rank; 100]);
        let gathered = job.all_gather(vec![rank, -rank]);
        let sent = job.broadcast(2, vec![rank; 7]);
        let exact = job.all_reduce_exact(vec![rank; 5]);
        let all = job.barrier();
        assert_eq!(
            gathered.wait().expect("it ends").values,
            [0.0, -0.0, 1.0, -1.0, 2.0, -2.0]
        );
        assert_eq!(sent.wait().expect("it ends").values, [2.0; 7]);
        assert_eq!(exact.wait().expect("it ends").values, [1.0; 5]);
        assert!(is_near(&mean.wait().expect("it ends").values, 1.0));
        all.wait().expect("it ends");
        let error = job
            .broadcast(3, vec![0.0])
            .wait()
            .expect_err("no such rank");
        assert!(
            error.to_string().contains("expected a rank from 0 to 2"),
            "{error}"
        );
    });
}

/// Wakes a thread: all that a future needs of an executor.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn pending_is_a_future_without_a_runtime() {
    at_addresses(2, |job| {
        let rank = f32::from(job.rank());
        let sum = async {
            let first = job.all_reduce(vec![rank; 1000]);
            let second = job.all_reduce(vec![rank + 1.0; 1000]);
            Ok::<_, JobError>(second.await?.values[0] + first.await?.values[0])
        };
        let sum = block_on(sum).expect("both end");
        assert!((sum - 2.0).abs() < 1e-4, "{sum}");
    });
}

#[test]
fn a_result_is_returned_once_and_waits_are_bounded() {
    at_addresses(2, |job| {
        let mut pending = job.all_reduce(vec![1.0; 10]);
        let result = loop {
            // A caller that handles signals in between.
            if let Some(result) = pending.wait_timeout(Duration::from_millis(1)) {
                break result;
            }
        };
        assert!(is_near(&result.expect("it ends").values, 1.0));
        assert!(matches!(pending.try_wait(), Some(Err(JobError::Taken))));
        let wrong = job.all_reduce(vec![1.0; 10]).wait_into(&mut [0.0; 3]);
        assert!(matches!(wrong, Err(JobError::Length { is: 10, buffer: 3 })));
    });
}

#[test]
fn a_dropped_job_does_its_part_first() {
    let results = at_addresses(3, |job| {
        let pending: Vec<_> = (0..4).map(|_| job.all_reduce(vec![1.0; 3000])).collect();
        if job.rank() == 0 {
            drop(pending);
            drop(job);
            return 4;
        }
        let ended = pending
            .into_iter()
            .map(|pending| pending.wait().expect("it ends"));
        ended.filter(|mean| mean.outcome.is_whole()).count()
    });
    assert_eq!(results, [4, 4, 4]);
}

#[test]
fn calls_come_from_any_thread() {
    at_addresses(2, |job| {
        let job = &job;
        thread::scope(|scope| {
            // One caller at a time, because both ranks must make their calls in the same order.
            for value in 0..4u16 {
                let mean = scope.spawn(move || job.all_reduce(vec![f32::from(value); 100]).wait());
                let mean = mean.join().expect("no panic").expect("it ends");
                assert!(is_near(&mean.values, value.into()));
            }
        });
    });
}

#[test]
fn a_wrong_seed_is_named_on_every_rank() {
    let addresses = addresses(4);
    let began = Instant::now();
    let errors = on_threads(4, move |rank| {
        let rendezvous = Addresses::new(rank, addresses.clone());
        let seed = if rank == 2 { 7 } else { 42 };
        let started = builder(rendezvous).seed(seed).start();
        started.err().expect("an error").to_string()
    });
    for error in errors {
        assert!(
            error.starts_with("rank 2 has seed 7, rank 0 has 42"),
            "{error}"
        );
    }
    assert!(began.elapsed() < DEADLINE);
}

#[test]
fn every_setting_that_must_be_equal_is_compared() {
    type Change = fn(&mut Settings);
    let cases: [(&str, Change); 6] = [
        ("element bf16, rank 0 has f32", |s| {
            s.element = ultima_host::Element::Bf16;
        }),
        ("coding none, rank 0 has Hadamard", |s| s.hadamard = false),
        ("recycling for 8 steps, rank 0 has off", |s| {
            s.recycling = true
        }),
        ("slot size 1024, rank 0 has none", |s| {
            s.slot_bytes = Some(1024)
        }),
        ("estimator scaled, rank 0 has arrived-mean", |s| {
            s.policies = Preset::Published.policies();
        }),
        ("timeouts fixed, rank 0 has cause-aware", |s| {
            s.policies.timeouts = ultima_host::Timeouts::Fixed;
        }),
    ];
    for (expected, change) in cases {
        let addresses = addresses(2);
        let errors = on_threads(2, move |rank| {
            let mut settings = Settings::new(DEADLINE);
            if rank == 1 {
                change(&mut settings);
            }
            let builder = builder(Addresses::new(rank, addresses.clone()));
            builder
                .settings(settings)
                .start()
                .err()
                .map(|e| e.to_string())
        });
        for error in errors {
            let error = error.expect("an error");
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn packets_are_sealed_with_one_key_unless_all_ranks_decline() {
    for seal in [true, false] {
        let addresses = addresses(3);
        let keys = on_threads(3, move |rank| {
            let builder = builder(Addresses::new(rank, addresses.clone()));
            // The default is true.
            let builder = if seal { builder } else { builder.seal(false) };
            builder.start().expect("starts").config().key
        });
        assert_eq!(keys[0].is_some(), seal);
        assert!(keys.iter().all(|key| *key == keys[0]));
    }
    let addresses = addresses(2);
    let errors = on_threads(2, move |rank| {
        let builder = builder(Addresses::new(rank, addresses.clone()));
        builder.seal(rank == 0).start().err()
    });
    for error in errors {
        let error = error.expect("an error").to_string();
        assert!(
            error.starts_with("rank 1 has sealing off, rank 0 has on"),
            "{error}"
        );
    }
}

#[test]
fn a_job_runs_with_the_published_policies() {
    let addresses = addresses(2);
    on_threads(2, move |rank| {
        let builder = builder(Addresses::new(rank, addresses.clone()));
        let job = builder
            .preset(Preset::Published)
            .start()
            .expect("it starts");
        let config = job.config();
        assert_eq!(config.timeouts, Timeouts::Published);
        assert_eq!(config.estimation, Estimation::Scaled);
        let mean = job.all_reduce(vec![f32::from(job.rank()); 5000]);
        assert!(is_near(&mean.wait().expect("it ends").values, 0.5));
    });
}

#[test]
fn runs_with_other_names_refuse_each_other() {
    let addresses = addresses(2);
    let errors = on_threads(2, move |rank| {
        let run = ["monday", "tuesday"][rank];
        let rendezvous = Addresses::new(rank, addresses.clone()).run(run);
        builder(rendezvous).start().err().map(|e| e.to_string())
    });
    for error in errors {
        let error = error.expect("an error");
        assert!(
            error.starts_with("rank 1 has run tuesday, rank 0 has monday"),
            "{error}"
        );
    }
}

#[test]
fn a_missing_rank_is_named_on_the_others() {
    let addresses = addresses(3);
    let errors = on_threads(2, move |rank| {
        let builder = builder(Addresses::new(rank, addresses.clone()));
        builder.timeout(Duration::from_millis(400)).start().err()
    });
    for error in errors {
        let sentence = error.as_ref().map(JobError::to_string);
        let printed = error.as_ref().map(|error| format!("{error:?}"));
        assert_eq!(printed, sentence);
        let refusal = match error {
            Some(JobError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert!(
            refusal.to_string().starts_with("rank 2 of 3 did not join"),
            "{refusal}"
        );
        assert!(matches!(refusal, Refusal::Missing { missing, .. } if missing == [2]));
    }
}

#[test]
fn a_store_that_does_not_run_is_an_error_with_advice() {
    let (host, port) = free_port();
    let rendezvous = TcpStore::new(&host, port, 1, 2);
    let error = builder(rendezvous)
        .timeout(Duration::from_millis(200))
        .start();
    let error = error.err().expect("an error").to_string();
    assert!(
        error.contains(&format!("{host}:{port}: no answer within")),
        "{error}"
    );
    assert!(error.contains("ULTIMA_STORE=host"), "{error}");
}

#[test]
fn a_store_that_rank_0_does_not_serve_is_an_error_without_torchs_advice() {
    let (host, port) = free_port();
    let rendezvous = TcpStore::new(&host, port, 1, 2).host();
    let error = builder(rendezvous)
        .timeout(Duration::from_millis(200))
        .start();
    let error = error.err().expect("an error").to_string();
    let expected = [
        &format!("{host}:{port}: no answer within"),
        "Rank 0 serves the store there, and did not start",
    ];
    assert!(expected.iter().all(|text| error.contains(text)), "{error}");
    assert!(!error.contains("ULTIMA_STORE=host"), "{error}");
}

#[test]
fn a_missing_store_is_reported_during_the_wait() {
    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let (host, port) = free_port();
    let rendezvous = TcpStore::new(&host, port, 1, 2).host();
    // The first notice comes after 5 s.
    let builder = builder(rendezvous).timeout(Duration::from_secs(7));
    let builder = builder.notice(|line| NOTICES.lock().expect("no panic").push(line.to_owned()));
    builder.start().err().expect("an error");
    let notices = NOTICES.lock().expect("no panic");
    let [notice] = &notices[..] else {
        panic!("one notice: {notices:?}");
    };
    let begins = format!("waiting for the rendezvous store at {host}:{port}: Connection refused");
    assert!(notice.starts_with(&begins), "{notice}");
}

#[test]
fn a_program_that_holds_the_stores_port_is_an_error_at_the_timeout() {
    let timeout = Duration::from_millis(300);
    // The listener's queue accepts connections without an answer.
    let silent = TcpListener::bind((own_ip(), 0)).expect("binds");
    let other = TcpListener::bind((own_ip(), 0)).expect("binds");
    let at = |listener: &TcpListener| listener.local_addr().expect("an address");
    let (silent_at, other_at) = (at(&silent), at(&other));
    // Ends with the test's process.
    thread::spawn(move || {
        let mut clients = Vec::new();
        for client in other.incoming() {
            let mut client = client.expect("a client");
            // Fails if the client has closed the connection.
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            clients.push(client);
        }
    });
    let own = addresses(1)[0];
    let store =
        |at: SocketAddr, rank| TcpStore::new(at.ip().to_string(), at.port(), rank, 2).host();
    let another = "another MASTER_PORT";
    let cases = [
        (builder(store(silent_at, 0)), "sends nothing", another),
        (builder(store(silent_at, 1)), "sends nothing", another),
        (builder(store(other_at, 1)), "sends other data", another),
        (
            builder(Addresses::new(1, [silent_at, own])),
            "sends nothing",
            "another port for rank 0",
        ),
    ];
    for (builder, problem, advice) in cases {
        let began = Instant::now();
        let error = builder.timeout(timeout).start();
        let error = error.err().expect("an error").to_string();
        assert!(began.elapsed() < Duration::from_secs(10), "{error}");
        let expected = ["no answer as a store within", problem, advice];
        assert!(expected.iter().all(|text| error.contains(text)), "{error}");
        assert!(!error.contains("ULTIMA_STORE=host"), "{error}");
    }
}

#[test]
fn ipv6_is_refused() {
    let mut addresses = addresses(2);
    addresses[1].set_ip(IpAddr::V6("fd00::1".parse().expect("an address")));
    let errors = [
        builder(Addresses::new(0, addresses)).start().err(),
        builder(TcpStore::new("::1", 29500, 0, 2)).start().err(),
    ];
    for error in errors {
        let error = error.expect("an error");
        assert!(matches!(error, JobError::Ipv6 { .. }), "{error:?}");
        assert!(error.to_string().contains("over IPv4 only"), "{error}");
    }
}

#[test]
fn port_0_is_refused_at_once() {
    let mut addresses = addresses(2);
    addresses[1].set_port(0);
    let cases = [
        (
            builder(Addresses::new(0, addresses)),
            "the address of rank 1",
        ),
        (
            builder(TcpStore::new("127.0.0.1", 0, 1, 2)),
            "the rendezvous store (MASTER_PORT)",
        ),
    ];
    for (builder, what) in cases {
        let error = builder.start().err().expect("an error").to_string();
        let expected = format!("{what} has port 0: expected a port from 1 to 65535");
        assert_eq!(error, expected);
    }
}

#[test]
fn packets_of_another_run_are_counted_and_dropped() {
    at_addresses(2, |job| {
        let config = job.config();
        // Epochs are not zero.
        let other = config.epoch % u16::MAX + 1;
        let header = Header::new(
            Kind::Scatter,
            config.job,
            other,
            1 - config.rank,
            config.rank,
        );
        let mut packet = vec![0; header.len()];
        header.emit(&mut packet);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        socket.send_to(&packet, job.address()).expect("sends");
        let mean = job.all_reduce(vec![f32::from(job.rank()); 10]).wait();
        assert!(is_near(&mean.expect("it ends").values, 0.5));
        // On loopback the packet is in the socket before the operation's.
        let report = job.report().expect("it runs");
        assert_eq!(report.totals.rejected.of(Rejection::Epoch), 1);
    });
}

/// Ranks at a store average, twice: a process may create several jobs.
fn average_at(store: impl Fn(usize) -> TcpStore + Clone + Send + 'static) {
    on_threads(4, move |rank| {
        let epochs = [0, 1].map(|_| {
            let job = builder(store(rank)).start().expect("it starts");
            let mean = job.all_reduce(vec![rank as f32; 1000]).wait();
            assert!(is_near(&mean.expect("it ends").values, 1.5));
            job.config().epoch
        });
        epochs.iter().for_each(|epoch| assert_ne!(*epoch, 0));
    });
}

#[test]
fn rank_0_serves_a_store_without_torch() {
    let (host, port) = free_port();
    average_at(move |rank| TcpStore::new(&host, port, rank, 4).host());
}

/// torch's own store, in a Python process.
struct TorchStore {
    python: Child,
    host: String,
    port: u16,
}

impl Drop for TorchStore {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

impl TorchStore {
    /// None if torch is not installed.
    fn start() -> Option<Self> {
        const PROGRAM: &str = "import sys\n\
             from torch.distributed import TCPStore\n\
             store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)\n\
             print('ready', flush=True)\n\
             sys.stdin.read()";
        let (host, port) = free_port();
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", PROGRAM, &host, &port.to_string()]);
        python
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let Ok(mut python) = python.spawn() else {
            skipped("/usr/bin/python3 does not run");
            return None;
        };
        let stdout = python.stdout.take().expect("a pipe");
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let store = Self { python, host, port };
        if read.is_err() || line.trim() != "ready" {
            skipped("torch is not installed for /usr/bin/python3");
            return None;
        }
        Some(store)
    }
}

#[test]
fn ranks_meet_at_torchs_own_store() {
    let Some(store) = TorchStore::start() else {
        return;
    };
    let (host, port) = (store.host.clone(), store.port);
    let at = move |rank| TcpStore::new(&host, port, rank, 4);
    average_at(at.clone());
    // Another generation of the same run does not meet the first one.
    average_at(move |rank| at(rank).run("default", 1));
}

#[test]
fn a_length_that_changes_with_recycling_is_an_error() {
    let addresses = addresses(2);
    on_threads(2, move |rank| {
        let settings = Settings {
            recycling: true,
            ..Settings::new(DEADLINE)
        };
        let builder = builder(Addresses::new(rank, addresses.clone()));
        let job = builder.settings(settings).start().expect("it starts");
        job.all_reduce(vec![1.0; 10]).wait().expect("it ends");
        let error = job
            .all_reduce(vec![1.0; 11])
            .wait()
            .expect_err("another length");
        let is_length =
            matches!(&error, JobError::Collective(e) if matches!(**e, Error::Length { .. }));
        assert!(is_length, "{error:?}");
        job.all_reduce(vec![1.0; 10])
            .wait()
            .expect("the job continues");
    });
}

#[test]
fn the_slot_grows_with_the_mtu() {
    let slots = at_addresses(2, |job| (job.config().slot_bytes, *job.address().ip()));
    for (slot, ip) in slots {
        assert!(ip.is_loopback());
        // The loopback interface has an MTU of 65,536.
        assert!((30_000..32_768).contains(&slot), "{slot}");
    }
}

/// Packets that are too long for an interface would be lost.
#[test]
fn a_slot_that_a_ranks_mtu_does_not_carry_is_refused_on_every_rank() {
    let Some(veth) = Veth::new() else {
        return skipped("only root may add namespaces");
    };
    let addresses = [0, 1].map(|end| SocketAddr::from((Veth::address(end), 7100)));
    let start = |rank: usize, slot_bytes| {
        veth.enter(rank);
        let mut builder = builder(Addresses::new(rank, addresses));
        builder.settings_mut().slot_bytes = Some(slot_bytes);
        builder.start()
    };
    let on_both = |slot_bytes| {
        thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| scope.spawn(move || start(rank, slot_bytes)));
            ranks.map(|rank| rank.join().expect("no panic"))
        })
    };
    for started in on_both(4096) {
        let error = started.err().expect("an error");
        let JobError::Refused(Refusal::Slot {
            rank: 0,
            mtu: 1500,
            most,
            ..
        }) = error
        else {
            panic!("{error}");
        };
        assert!(
            error
                .to_string()
                .contains(&format!("set slot_bytes to at most {most},"))
        );
    }
}
