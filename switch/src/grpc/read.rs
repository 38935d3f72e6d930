//! The call `Read` (P4Runtime §13).
//!
//! §13.4 asks a server to block writes until it has sent the response. A slow client could then keep the primary from writing.
//! So this server first collects the response and then sends it while writes continue. Most reads take one turn of the
//! forwarding thread and need no lock. Of longer reads only one runs at a time, with a bound on its steps, so a write waits for
//! one read at most.

use std::sync::Arc;

use tonic::{Code, Status};
use ultima_p4runtime::v1::{ReadRequest, ReadResponse};

use super::answers::Answer;
use super::{ResponseStream, Service, check_count, no_pipeline};
use crate::pipeline::Pipeline;
use crate::target::Refusal;
use crate::translate::query::{ENTRY, STEP, Scan};
use crate::translate::{Query, Row, query};

/// Largest number of steps of one read: several times all of a program's largest arrays.
const MAX_STEPS: usize = 1 << 14;

type Queries = Arc<Vec<Result<Query, Refusal>>>;

/// The result of one turn of the forwarding thread: objects by the positions of their requests.
type Found = Vec<(usize, Result<Vec<Row>, Refusal>)>;

#[derive(Debug, Clone, Copy)]
struct Progress {
    request: usize,
    scan: Scan,
}

impl Service {
    pub(super) async fn read(
        &self,
        request: ReadRequest,
    ) -> Result<ResponseStream<ReadResponse>, Status> {
        self.check_device(request.device_id)?;
        check_count(request.entities.len(), "entities")?;
        let target = self.loader.target.as_deref();
        let requests = request.entities.into_iter();
        let requests: Queries = Arc::new(requests.map(|it| query(target, it)).collect());
        let begin = Progress::of(0);
        let mut answer = Answer::new(requests.len(), self.answers.clone());
        if self
            .read_turn(&requests, begin, &mut answer)
            .await?
            .is_none()
        {
            return Ok(answer.stream());
        }
        // Again, without writes in between.
        drop(answer);
        let mut answer = Answer::new(requests.len(), self.answers.clone());
        {
            let _one = self.reading.lock().await;
            let _no_writes = self.schema.write().await;
            let mut progress = Some(begin);
            let mut steps = 0;
            while let Some(at) = progress {
                if steps == MAX_STEPS {
                    let most = MAX_STEPS * STEP;
                    let what = format!("more than {most} entities to look at; read less at once");
                    let error = Refusal::new(Code::ResourceExhausted, what);
                    answer.refuse_from(at.request, &error);
                    break;
                }
                steps += 1;
                progress = self.read_turn(&requests, at, &mut answer).await?;
            }
        }
        Ok(answer.stream())
    }

    /// Reads for one turn of the forwarding thread. Returns `None` at the end.
    async fn read_turn(
        &self,
        requests: &Queries,
        mut progress: Progress,
        answer: &mut Answer,
    ) -> Result<Option<Progress>, Status> {
        let shared = requests.clone();
        let turn = self.forwarder.call(move |datapath| {
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            Ok::<_, Status>((read_for_a_turn(pipeline, &shared, &mut progress), progress))
        });
        let (found, mut progress) = turn.await??;
        for (request, found) in found {
            let pushed = answer.push(request, found);
            if !pushed && request == progress.request {
                progress = Progress::of(request + 1);
            }
        }
        Ok((progress.request < requests.len()).then_some(progress))
    }
}

impl Progress {
    fn of(request: usize) -> Progress {
        let scan = Scan::new(STEP);
        Progress { request, scan }
    }
}

fn read_for_a_turn(
    pipeline: &Pipeline,
    requests: &[Result<Query, Refusal>],
    progress: &mut Progress,
) -> Found {
    let mut turn = Vec::new();
    let mut room = STEP;
    while room > 0
        && let Some(request) = requests.get(progress.request)
    {
        progress.scan.resume(room);
        let mut found = Vec::new();
        let result = match request {
            Ok(query) => query(pipeline, &mut progress.scan, &mut found),
            Err(refusal) => Err(refusal.clone()),
        };
        let pauses = result.is_ok() && progress.scan.is_paused();
        room = progress.scan.room().saturating_sub(ENTRY);
        turn.push((progress.request, result.map(|()| found)));
        if pauses {
            break;
        }
        *progress = Progress::of(progress.request + 1);
    }
    turn
}
