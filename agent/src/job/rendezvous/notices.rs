//! Notices during a long wait for a service.

use std::time::{Duration, Instant};

/// The growth of the time until the next notice.
const GROWTH: u32 = 4;

/// Reports at growing intervals why a rank waits for a service.
pub(super) struct Notices {
    begun: Instant,
    /// The wait after which the next notice is due.
    next: Duration,
    until: Instant,
    notice: fn(&str),
}

impl Notices {
    /// Begins a wait until `until`. The first notice is due after `first`.
    pub(super) fn new(first: Duration, until: Instant, notice: fn(&str)) -> Self {
        Self {
            begun: Instant::now(),
            next: first,
            until,
            notice,
        }
    }

    /// Reports the latest `problem` of `service`, if a notice is due.
    pub(super) fn failed(&mut self, service: &str, problem: &str) {
        let now = Instant::now();
        let waited = now - self.begun;
        if waited < self.next {
            return;
        }
        self.next = GROWTH * waited;
        let left = self.until.saturating_duration_since(now);
        (self.notice)(&format!(
            "waiting for {service}: {problem} (for up to {:.0} s more)",
            left.as_secs_f64()
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::sleep;

    use super::*;

    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn notices_name_the_problem_and_the_end_at_growing_intervals() {
        let first = Duration::from_millis(100);
        let until = Instant::now() + Duration::from_secs(300);
        let mut notices = Notices::new(first, until, |line| {
            NOTICES.lock().expect("no panic").push(line.to_owned());
        });
        notices.failed("the store", "too early");
        sleep(first);
        notices.failed("the store", "refused");
        notices.failed("the store", "too early again");
        let notices = NOTICES.lock().expect("no panic");
        let [notice] = &notices[..] else {
            panic!("one notice: {notices:?}");
        };
        assert!(
            notice.starts_with("waiting for the store: refused"),
            "{notice}"
        );
        assert!(notice.ends_with(" s more)"), "{notice}");
    }
}
