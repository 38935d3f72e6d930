//! A job's latest counters, shared by all clients that ask for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use ultima_api::v1::SwitchTelemetry;

/// The counters that were read last.
#[derive(Debug, Default)]
pub struct Sample(Mutex<Option<Taken>>);

#[derive(Debug)]
struct Taken {
    at: Instant,
    counted: Arc<[SwitchTelemetry]>,
}

impl Sample {
    /// Returns the counters if they are at most `age` old; otherwise reads them with `take`.
    /// Concurrent calls share one read.
    ///
    /// # Errors
    /// The error of `take`.
    pub async fn get<E>(
        &self,
        age: Duration,
        take: impl Future<Output = Result<Vec<SwitchTelemetry>, E>>,
    ) -> Result<Arc<[SwitchTelemetry]>, E> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(taken) = &*last
            && taken.at + age >= asked
        {
            return Ok(Arc::clone(&taken.counted));
        }
        let at = Instant::now();
        let counted: Arc<[SwitchTelemetry]> = take.await?.into();
        *last = Some(Taken {
            at,
            counted: Arc::clone(&counted),
        });
        Ok(counted)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use futures_util::future::join_all;
    use tokio::task::yield_now;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn concurrent_calls_share_reads() {
        let (sample, reads) = (Sample::default(), Cell::new(0));
        let read = async || {
            reads.set(reads.get() + 1);
            yield_now().await;
            Ok::<_, Infallible>(vec![SwitchTelemetry::default()])
        };
        let all = join_all((0..64).map(|_| sample.get(Duration::ZERO, read()))).await;
        assert!(
            all.iter()
                .all(|counted| counted.as_ref().unwrap().len() == 1)
        );
        // One read for the first call, which began before the others, and one for all of these.
        let before = reads.get();
        assert!(before <= 2, "{before}");

        sample.get(HOUR, read()).await.unwrap();
        assert_eq!(
            reads.get(),
            before,
            "the counters are less than an hour old"
        );
        sample.get(Duration::ZERO, read()).await.unwrap();
        assert_eq!(
            reads.get(),
            before + 1,
            "the counters are older than zero seconds"
        );
    }
}
