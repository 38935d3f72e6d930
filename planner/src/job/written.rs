//! Jobs with their text, so that a controller's rejection names the place in the file.

use ultima_api::Line;
use ultima_api::v1::FieldProblem;

use super::{JobRequest, file};
use crate::yaml::{LoadError, Place, Text};

/// A job of a file.
#[derive(Debug)]
pub struct WrittenJob {
    /// The requested job.
    pub request: JobRequest,
    text: Text,
}

impl WrittenJob {
    pub(super) fn parse(text: &str, source: &str) -> Result<Self, LoadError> {
        let text = Text::new(text, source);
        let request = file::check(text.parse()?);
        let request = request.map_err(|refusal| {
            let field = refusal.field.as_deref().unwrap_or_default();
            text.fail(field, &refusal)
        })?;
        Ok(WrittenJob { request, text })
    }

    /// Returns a rejection as an error of the file: `job.yaml:2:15: members[1]: unknown host "h9"
    /// (the fabric has h1, h2)`. `job` is this job or one of its grid's, and `field` its problem;
    /// without a field, `said` is about the job as a whole.
    pub fn refused(&self, job: &str, field: Option<&FieldProblem>, said: &str) -> String {
        match field {
            Some(FieldProblem { field, problem }) => {
                let field = self.field(job, field);
                format!("{}: {field}: {problem}", self.place_of(&field))
            }
            None => format!("{}: {said}", self.place()),
        }
    }

    /// The place of the job.
    pub fn place(&self) -> Place {
        self.text.place("")
    }

    /// True if the file has the field.
    pub fn has(&self, field: &str) -> bool {
        self.text.find(field).is_some()
    }

    /// The place of a field, or of the job if the file does not have the field.
    pub fn place_of(&self, field: &str) -> Place {
        self.text.place(field)
    }

    /// The name of a job's field in the file. The members of a grid's jobs are in another order
    /// there.
    fn field(&self, job: &str, field: &str) -> String {
        let member = file::member(field);
        match (&self.request, Line::of(job), member) {
            (JobRequest::Grid(grid), Some((_, line)), Some(index)) => {
                format!("members[{}]", grid.place(line, index))
            }
            _ => field.to_owned(),
        }
    }
}
