//! How lists of objects are printed and watched: the options of kubectl's `get`.

mod template;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use serde_json::{Value, json};
use tokio::time::sleep;
use ultima_console::output::{self, Json, columns};

use crate::exit::Exit;
use crate::which::named;
use template::Template;

/// The pause between two looks of a watch.
const LOOK: Duration = Duration::from_secs(1);

/// The options.
#[derive(clap::Args, Clone, Debug)]
pub struct View {
    /// Output format: table, wide, name, json, yaml, or jsonpath=TEMPLATE, such as jsonpath={[*].name}
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "table",
        value_parser = format,
        add = ArgValueCandidates::new(|| FORMATS.map(CompletionCandidate::new).into())
    )]
    format: Format,
    /// Print no header
    #[arg(long)]
    no_headers: bool,
    /// After the list, print what changes and what is deleted, until interrupted; JSON and YAML then have one document for each object
    #[arg(short, long)]
    watch: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Format {
    Table { wide: bool },
    Name,
    Document(output::Format),
    Path(Template),
}

/// The formats that shells complete.
const FORMATS: [&str; 6] = ["table", "wide", "name", "json", "yaml", "jsonpath="];

fn format(text: &str) -> Result<Format, String> {
    Ok(match text {
        "table" => Format::Table { wide: false },
        "wide" => Format::Table { wide: true },
        "name" => Format::Name,
        "json" => Format::Document(output::Format::Json),
        "yaml" => Format::Document(output::Format::Yaml),
        text => match text.strip_prefix("jsonpath=") {
            Some(template) => Format::Path(template.parse()?),
            None => {
                return Err("expected table, wide, name, json, yaml or jsonpath=TEMPLATE".into());
            }
        },
    })
}

/// Objects of one kind.
pub struct Listing {
    /// The name of the kind, such as `job`.
    pub kind: &'static str,
    /// The columns of every table.
    pub header: &'static [&'static str],
    /// The columns that `-o wide` adds.
    pub wide: &'static [&'static str],
    /// The objects.
    pub rows: Vec<Row>,
}

impl Listing {
    /// The table.
    ///
    /// # Errors
    /// None.
    pub fn table(&self, wide: bool) -> Result<String> {
        let view = View {
            format: Format::Table { wide },
            no_headers: false,
            watch: false,
        };
        view.text(self, &mut Printed::default(), false)
    }

    /// Keeps only the objects of these names, if there are any, in their order. Returns the [unknown names](unknown_names). A
    /// grid's name stands for its jobs.
    pub fn keep(&mut self, names: &[String]) -> Option<String> {
        if names.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.rows);
        let mut unknown = Vec::new();
        for name in names {
            let found = named(self.kind, all.iter().map(|row| row.name.as_str()), name);
            if found.is_empty() {
                unknown.push(name.as_str());
            }
            let row = |name: &str| all.iter().find(|row| row.name == name).cloned();
            self.rows.extend(found.into_iter().filter_map(row));
        }
        unknown_names(self.kind, &unknown)
    }
}

/// The words for names that no object of a kind has; none without names.
pub fn unknown_names(kind: &str, names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("no {kind} is named {}", names.join(", ")))
}

/// The result of a request with [unknown names](unknown_names) of some kinds.
///
/// # Errors
/// There are some: [`Exit::NotFound`].
pub fn all_found(unknown: impl IntoIterator<Item = String>) -> Result<()> {
    let unknown: Vec<String> = unknown.into_iter().collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(Exit::NotFound.because(unknown.join("; ")).into()),
    }
}

/// An object.
#[derive(Clone, PartialEq)]
pub struct Row {
    /// Its name, as other commands take it.
    pub name: String,
    /// The cells of all columns, the wide ones last.
    pub cells: Vec<String>,
    /// The cells that change by themselves, such as an age: they are printed, but a watch prints no row for them alone.
    pub aging: &'static [usize],
    /// The object for JSON and YAML.
    pub document: Json,
}

impl Row {
    /// True if something changed since `before`.
    fn is_news(&self, before: Option<&Row>) -> bool {
        let steady = |row: &Row| {
            let mut row = row.clone();
            row.aging.iter().for_each(|at| row.cells[*at].clear());
            row
        };
        before.is_none_or(|before| steady(before) != steady(self))
    }
}

impl View {
    /// True if changes are watched.
    pub fn is_watch(&self) -> bool {
        self.watch
    }

    /// Formats objects of several kinds: a table for each kind, or one list of documents.
    ///
    /// # Errors
    /// None.
    pub fn text_of_all(&self, listings: Vec<Listing>) -> Result<String> {
        match self.format {
            Format::Document(_) | Format::Path(_) => {
                let rows = listings.into_iter().flat_map(|it| it.rows).collect();
                let all = Listing {
                    kind: "object",
                    header: &[],
                    wide: &[],
                    rows,
                };
                self.text(&all, &mut Printed::default(), false)
            }
            Format::Table { .. } | Format::Name => {
                let text = |it: &Listing| self.text(it, &mut Printed::default(), false);
                let mut texts: Vec<String> = listings.iter().map(text).collect::<Result<_>>()?;
                texts.retain(|text| !text.is_empty());
                let gap = if self.format == Format::Name {
                    ""
                } else {
                    "\n"
                };
                Ok(texts.join(gap))
            }
        }
    }

    /// As [`View::show`], but ends also when the user interrupts it.
    ///
    /// # Errors
    /// As [`View::show`].
    pub async fn show_until_interrupted(
        &self,
        names: &[String],
        list: impl AsyncFn() -> Result<Listing>,
    ) -> Result<ExitCode> {
        tokio::select! {
            shown = self.show(names, list) => shown.map(|()| ExitCode::SUCCESS),
            () = crate::runtime::interrupted() => Ok(Exit::Interrupted.into()),
        }
    }

    /// Prints the objects that `list` returns, or only those with these names. With `--watch`, then prints what changes, until
    /// these objects are deleted or the reader closes the pipe.
    ///
    /// # Errors
    /// No object has one of the names, after the others are printed; errors of `list`.
    pub async fn show(
        &self,
        names: &[String],
        list: impl AsyncFn() -> Result<Listing>,
    ) -> Result<()> {
        let mut listing = list().await?;
        let found = all_found(listing.keep(names));
        if found.is_err() && (self.watch || listing.rows.is_empty()) {
            return found;
        }
        let mut printed = Printed::default();
        if !self.watch {
            let single = names.len() == 1 && listing.rows.len() == 1;
            output::print(&self.text(&listing, &mut printed, single)?)?;
            return found;
        }
        let mut known: BTreeMap<String, Row> = BTreeMap::new();
        loop {
            let all = listing.rows.clone();
            listing.rows.retain(|row| row.is_news(known.get(&row.name)));
            for row in &all {
                known.remove(&row.name);
            }
            let mut text = self.deleted(&listing, known.into_values(), &mut printed)?;
            if !listing.rows.is_empty() {
                text += &self.text(&listing, &mut printed, true)?;
            }
            let is_read = text.is_empty()
                || crate::runtime::print_beside(text).await? == ControlFlow::Continue(());
            // The watched objects are deleted.
            let is_gone = !names.is_empty() && all.is_empty();
            if !is_read || is_gone {
                return Ok(());
            }
            known = all.into_iter().map(|row| (row.name.clone(), row)).collect();
            sleep(LOOK).await;
            listing = list().await?;
            listing.keep(names);
        }
    }

    /// Formats deleted objects, as a watch prints them: with the status `Deleted`, or as documents with a field `deleted`.
    fn deleted(
        &self,
        listing: &Listing,
        gone: impl Iterator<Item = Row>,
        printed: &mut Printed,
    ) -> Result<String> {
        let Listing { kind, header, .. } = listing;
        let status = header.iter().position(|name| *name == "STATUS");
        let deletion = |mut row: Row| {
            let document = json!({ "kind": kind, "name": row.name, "deleted": true });
            row.document = Json::of(&document)?;
            if let Some(status) = status {
                row.cells[status] = "Deleted".to_owned();
            }
            Ok(row)
        };
        let gone = Listing {
            rows: gone.map(deletion).collect::<Result<_>>()?,
            ..*listing
        };
        Ok(match &self.format {
            // An old event makes room for a new one.
            _ if gone.rows.is_empty() || *kind == "event" => String::new(),
            // A template is for objects.
            Format::Path(_) => String::new(),
            Format::Name => self.text(&gone, printed, true)?.replace('\n', " deleted\n"),
            Format::Table { .. } | Format::Document(_) => self.text(&gone, printed, true)?,
        })
    }

    /// Formats a listing. `single`: each object is a document of its own.
    fn text(&self, listing: &Listing, printed: &mut Printed, single: bool) -> Result<String> {
        let Listing {
            kind,
            header,
            wide,
            rows,
        } = listing;
        let documents = rows.iter().map(|row| &row.document);
        Ok(match &self.format {
            Format::Name => rows
                .iter()
                .map(|row| format!("{kind}/{}\n", row.name))
                .collect(),
            Format::Table { .. } if rows.is_empty() => {
                eprintln!("no {kind} found");
                String::new()
            }
            Format::Table { wide: is_wide } => {
                let shown = header.len() + if *is_wide { wide.len() } else { 0 };
                let names = header.iter().chain(*wide).map(ToString::to_string);
                let names = (!printed.header && !self.no_headers).then(|| names.collect());
                let rows = rows.iter().map(|row| row.cells.clone());
                let mut rows: Vec<Vec<String>> = names.into_iter().chain(rows).collect();
                rows.iter_mut().for_each(|row| row.truncate(shown));
                printed.header = true;
                columns(&rows, &mut printed.widths)
            }
            Format::Document(format) if single => {
                let one = |document| match self.watch {
                    true => format.print_one(document, String::new),
                    false => format.print(document, String::new),
                };
                documents.map(one).collect::<Result<String>>()?
            }
            Format::Document(format) => {
                format.print(&documents.collect::<Vec<_>>(), String::new)?
            }
            Format::Path(template) if single => {
                let filled = documents.map(|document| Ok(template.line(&document.value()?)));
                filled.collect::<Result<String>>()?
            }
            Format::Path(template) => {
                let all = documents.map(Json::value).collect::<Result<_>>()?;
                template.line(&Value::Array(all))
            }
        })
    }
}

/// The output of a watch so far.
#[derive(Default)]
struct Printed {
    header: bool,
    widths: Vec<usize>,
}

/// A time since something, in at most two digits and a unit, as kubectl writes it.
pub fn age(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(format: &str) -> View {
        View {
            format: super::format(format).expect("a format"),
            no_headers: false,
            watch: false,
        }
    }

    fn listing() -> Listing {
        let row = |name: &str, age: &str| Row {
            name: name.into(),
            cells: [name, age, "x"].map(String::from).into(),
            aging: &[1],
            document: Json::of(&json!({ "name": name })).expect("JSON"),
        };
        Listing {
            kind: "job",
            header: &["NAME", "AGE"],
            wide: &["ID"],
            rows: vec![row("train", "5s"), row("b", "3m")],
        }
    }

    #[test]
    fn each_format_prints_the_objects() {
        let list = |format| {
            view(format)
                .text(&listing(), &mut Printed::default(), false)
                .expect("text")
        };
        assert_eq!(list("table"), "NAME   AGE\ntrain  5s\nb      3m\n");
        assert_eq!(
            list("wide"),
            "NAME   AGE  ID\ntrain  5s   x\nb      3m   x\n"
        );
        assert_eq!(list("name"), "job/train\njob/b\n");
        assert_eq!(list("yaml"), "- name: train\n- name: b\n");
        assert_eq!(list("jsonpath={[*].name}"), "train b\n");
        let one = |format| {
            view(format)
                .text(&listing(), &mut Printed::default(), true)
                .expect("text")
        };
        assert_eq!(one("jsonpath={.name}"), "train\nb\n");
        assert_eq!(one("jsonpath={.name}{\"\\n\"}"), "train\nb\n");
        assert!(super::format("xml").is_err());
    }

    #[test]
    fn deletions_are_printed_in_each_format() {
        let deleted = |format| {
            let mut listing = listing();
            listing.header = &["NAME", "STATUS"];
            let gone = std::mem::take(&mut listing.rows).into_iter().take(1);
            view(format)
                .deleted(&listing, gone, &mut Printed::default())
                .expect("text")
        };
        assert_eq!(deleted("table"), "NAME   STATUS\ntrain  Deleted\n");
        assert_eq!(deleted("name"), "job/train deleted\n");
        let document: Value = serde_json::from_str(&deleted("json")).expect("JSON");
        let expected = json!({ "kind": "job", "name": "train", "deleted": true });
        assert_eq!(document, expected);
        assert_eq!(deleted("jsonpath={.name}"), "");
    }

    #[test]
    fn an_age_alone_is_no_news() {
        let [before, other] = <[Row; 2]>::try_from(listing().rows).ok().expect("two");
        let mut older = before.clone();
        older.cells[1] = "6s".into();
        assert!(!older.is_news(Some(&before)));
        older.cells[2] = "y".into();
        assert!(older.is_news(Some(&before)) && other.is_news(None));
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (400_000, "4d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
    }
}
