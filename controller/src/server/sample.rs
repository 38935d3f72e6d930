//! What a job's switches have counted, for as many as ask.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::api::SwitchTelemetry;

/// The counts that were read last.
#[derive(Debug, Default)]
pub struct Sample(Mutex<Option<Taken>>);

#[derive(Debug)]
struct Taken {
    at: Instant,
    counted: Arc<[SwitchTelemetry]>,
}

impl Sample {
    /// The counts as they were no longer than `age` ago, else as `take` reads them now. Who asks while it is read waits, and reads no more
    /// than once with all others who do.
    ///
    /// # Errors
    /// What `take` says.
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
    async fn many_who_ask_at_once_do_not_read_each() {
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
        // Once for the first, which had begun before the others asked, and once for all of these.
        let before = reads.get();
        assert!(before <= 2, "{before}");

        sample.get(HOUR, read()).await.unwrap();
        assert_eq!(reads.get(), before, "it is no hour old");
        sample.get(Duration::ZERO, read()).await.unwrap();
        assert_eq!(reads.get(), before + 1, "it is older than nothing");
    }
}
