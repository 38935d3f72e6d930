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
    file: Spanned<JobFile>,
    source: String,
}

impl WrittenJob {
    pub(super) fn parse(text: &str, source: &str) -> Result<Self, JobError> {
        let file: Spanned<JobFile> = yaml::parse(text, source)?;
        Ok(WrittenJob {
            request: file::check(&file, source)?,
            file,
            source: source.to_owned(),
        })
    }

    /// What is wrong with it as errors of the file say it: `job.yaml:2:15: members[1]: the fabric has no host "h9"`. `job` is the job
    /// that was asked for, this one or one of its grid's, and `field` what is wrong with it; without one it is `said` of the job as a whole.
    pub fn refused(&self, job: &str, field: Option<&FieldProblem>, said: &str) -> String {
        match field {
            Some(FieldProblem { field, problem }) => {
                let field = self.field(job, field);
                format!("{}: {field}: {problem}", self.place_of(&field))
            }
            None => format!("{}: {said}", self.place()),
        }
    }

    /// The same of what its file does not say right.
    pub fn invalid(&self, problem: &JobProblem) -> String {
        let field = problem.field();
        format!("{}: {field}: {problem}", self.place_of(field))
    }

    /// Where it begins.
    pub fn place(&self) -> Place {
        Place::new(&self.source, self.file.referenced)
    }

    /// Where a field of it stands; where it begins if the file does not have that.
    pub fn place_of(&self, field: &str) -> Place {
        match self.file.value.location(field) {
            Location::UNKNOWN => self.place(),
            location => Place::new(&self.source, location),
        }
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
