//! A job as a file has it, with where its fields stand there: what a controller says of one is said of its place.

use serde_yaml::{Location, Spanned};

use super::file::{self, JobFile};
use super::{JobError, JobProblem, JobRequest, Line};
use crate::api::FieldProblem;
use crate::yaml::{self, Place};

/// A job of a file.
#[derive(Debug)]
pub struct WrittenJob {
    /// What it asks for.
    pub request: JobRequest,
    text: Text,
}

/// What a file says.
#[derive(Debug)]
struct Text {
    file: Spanned<JobFile>,
    source: String,
}

impl Text {
    /// Where it begins.
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

    /// What is wrong with it as errors of the file say it: `job.yaml:2:15: members[1]: the fabric has no host "h9"`. `job` is the job
    /// that was asked for, this one or one of its grid's, and `field` what is wrong with it; without one it is `said` of the job as a whole.
    pub fn refused(&self, job: &str, field: Option<&FieldProblem>, said: &str) -> String {
        match field {
            Some(FieldProblem { field, problem }) => {
                let field = self.field(job, field);
                format!("{}: {field}: {problem}", self.place_of(&field))
            }
            None => format!("{}: {said}", self.text.place()),
        }
    }

    /// What its file does not say right.
    pub fn invalid(&self, problem: JobProblem) -> JobError {
        self.text.invalid(problem)
    }

    /// Where it begins.
    pub fn place(&self) -> Place {
        self.text.place()
    }

    /// Where a field of it stands; where it begins if the file does not have that.
    pub fn place_of(&self, field: &str) -> Place {
        self.text.place_of(field)
    }

    /// What the file calls a field of a job: a grid's jobs have its members in an order of their own.
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
