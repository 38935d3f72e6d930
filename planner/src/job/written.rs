//! Jobs with the places of their fields in the file, so that a controller's rejection names the
//! place.

use serde_yaml::{Location, Spanned};
use ultima_api::Line;
use ultima_api::v1::FieldProblem;

use super::file::{self, JobFile};
use super::{JobError, JobProblem, JobRequest};
use crate::yaml::{self, Place};

/// A job of a file.
#[derive(Debug)]
pub struct WrittenJob {
    /// The requested job.
    pub request: JobRequest,
    text: Text,
}

/// The content of the file.
#[derive(Debug)]
struct Text {
    file: Spanned<JobFile>,
    source: String,
}

impl Text {
    /// The place of the job.
    fn place(&self) -> Place {
        Place::new(&self.source, self.file.referenced)
    }

    fn place_of(&self, field: &str) -> Place {
        match self.file.value.location(field) {
            Location::UNKNOWN => self.place(),
            location => Place::new(&self.source, location),
        }
    }

    fn invalid(&self, problem: JobProblem) -> JobError {
        let field = problem.field();
        JobError::Invalid {
            place: self.place_of(field),
            field: field.into(),
            problem: Box::new(problem),
        }
    }
}

impl WrittenJob {
    pub(super) fn parse(text: &str, source: &str) -> Result<Self, JobError> {
        let text = Text {
            file: yaml::parse(text, source)?,
            source: source.to_owned(),
        };
        let request = file::check(&text.file.value);
        let request = request.map_err(|problem| text.invalid(problem))?;
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
            None => format!("{}: {said}", self.text.place()),
        }
    }

    /// The place of the job.
    pub fn place(&self) -> Place {
        self.text.place()
    }

    /// True if the file has the field.
    pub fn has(&self, field: &str) -> bool {
        self.text.file.value.location(field) != Location::UNKNOWN
    }

    /// The place of a field, or of the job if the file does not have the field.
    pub fn place_of(&self, field: &str) -> Place {
        self.text.place_of(field)
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
