//! Jobs with their text, so that a controller's rejection names the place in the file.

use std::sync::Arc;

use ultima_api::Line;
use ultima_api::v1::FieldProblem;

use super::file::Document;
use super::{JobRequest, file};
use crate::yaml::{FilePosition, LoadError, Text};

/// The path of a field of the job at `at`.
fn path(at: &str, field: &str) -> String {
    match at.is_empty() || field.is_empty() {
        true => format!("{at}{field}"),
        false => format!("{at}.{field}"),
    }
}

/// A job of a file.
#[derive(Debug)]
pub struct WrittenJob {
    /// The requested job.
    pub request: JobRequest,
    text: Arc<Text>,
    /// The place of the job in its document: empty, or `[2]` in a list.
    at: String,
}

impl WrittenJob {
    /// The jobs of a YAML document.
    pub(super) fn parse(text: &str, source: &str) -> Result<Vec<Self>, LoadError> {
        let text = Arc::new(Text::new(text, source));
        let job = |file, at: String| {
            let request = file::check(file).map_err(|refusal| {
                let field = refusal.field.as_deref().unwrap_or_default();
                text.fail(&path(&at, field), &refusal)
            })?;
            let text = Arc::clone(&text);
            Ok(WrittenJob { request, text, at })
        };
        match text.parse()? {
            Document::One(file) => Ok(vec![job(*file, String::new())?]),
            Document::List(files) => {
                let files = files.into_iter().enumerate();
                files
                    .map(|(at, file)| job(file, format!("[{at}]")))
                    .collect()
            }
        }
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
    pub fn place(&self) -> FilePosition {
        self.text.place(&self.at)
    }

    /// True if the file has the field.
    pub fn has(&self, field: &str) -> bool {
        self.text.find(&path(&self.at, field)).is_some()
    }

    /// The place of a field, or of the job if the file does not have the field.
    pub fn place_of(&self, field: &str) -> FilePosition {
        let place = self.text.find(&path(&self.at, field));
        place.unwrap_or_else(|| self.place())
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
