//! Experiment files: YAML form, validation, JSON schema.
//!
//! ```yaml
//! title: How completion times grow
//! # Settings of all experiments: the options of `ultima-research sim`, by their names.
//! all: { operations: 100, bytes: 25M }
//! experiments:
//!   ranks:
//!     x: ranks                  # the setting on the plot's horizontal axis
//!     ranks: [8, 64, 512]       # a list is run value by value, lists in all combinations
//!     tail: [1.5, 3]
//!     algorithm: [tar, ring]
//!     seed: [1, 2, 3]
//! ```

use std::collections::BTreeMap;
use std::fmt;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_yaml::{Location, Spanned};
use ultima_planner::yaml::LoadError;
use ultima_planner::yaml::{self, FilePosition};
use ultima_sim::Experiment;

use super::options::Options;

/// Maximum number of runs in a file.
const MAX_RUNS: usize = 10_000;

/// A setting that a plot can have on its horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Ranks,
    Bytes,
    Tail,
    Background,
    Loss,
}

impl Axis {
    const ALL: [Axis; 5] = [
        Axis::Ranks,
        Axis::Bytes,
        Axis::Tail,
        Axis::Background,
        Axis::Loss,
    ];

    /// The setting's name.
    pub fn setting(self) -> &'static str {
        match self {
            Axis::Ranks => "ranks",
            Axis::Bytes => "bytes",
            Axis::Tail => "tail",
            Axis::Background => "background",
            Axis::Loss => "loss",
        }
    }
}

/// An experiment file.
#[derive(Debug)]
pub struct File {
    pub title: Option<String>,
    /// In the order of their names.
    pub experiments: Vec<Grid>,
}

/// An experiment: runs in all combinations of some settings.
#[derive(Debug)]
pub struct Grid {
    pub name: String,
    pub x: Axis,
    /// Settings that all runs have alike, as they are written.
    pub fixed: Vec<(String, String)>,
    pub runs: Vec<Run>,
}

/// One run of a grid.
#[derive(Debug)]
pub struct Run {
    pub experiment: Experiment,
    /// The value on the plot's axis, as written.
    pub x: String,
    /// Settings, as they are written, that this run and others of its grid have differently, apart from the axis, the
    /// algorithm and the seed: a plot has a panel for each combination.
    pub panel: Vec<(String, String)>,
}

/// An error in a well-formed file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// An unknown setting.
    #[error("unknown setting; expected x, {0}")]
    Setting(String),
    /// An invalid value, or an invalid combination of values.
    #[error("{0}")]
    Value(String),
    /// A setting without a value.
    #[error("empty list; expected at least one value")]
    Empty,
    /// An unknown axis.
    #[error("x: expected ranks, bytes, tail, background or loss")]
    Axis,
    /// No axis.
    #[error("x is missing; expected ranks, bytes, tail, background or loss")]
    NoAxis,
    /// An axis without values.
    #[error("x is {0}, but {0} has no values")]
    NoValues(&'static str),
    /// A name that is not valid as a file name.
    #[error("invalid name; use up to 63 letters, digits, - and _")]
    Name,
    /// No experiments.
    #[error("no experiments; expected experiments: {{NAME: {{x: ranks, ranks: [8, 16]}}}}")]
    Nothing,
    /// Too many runs.
    #[error("more than {MAX_RUNS} runs in this file; use fewer values")]
    Runs,
}

/// Experiments for `ultima-research sim run`.
#[derive(Deserialize, JsonSchema)]
#[schemars(title = "Ultima experiments")]
#[serde(deny_unknown_fields)]
struct Form {
    /// Title of the plots.
    title: Option<String>,
    /// Settings of all experiments; an experiment may override them.
    #[serde(default)]
    #[schemars(schema_with = "settings_schema")]
    all: Settings,
    /// Settings of each experiment, by name. A list gives one run per value; several lists give all combinations.
    #[schemars(schema_with = "experiments_schema")]
    experiments: Spanned<BTreeMap<String, Spanned<Settings>>>,
}

/// The JSON schema of a file.
pub fn schema() -> serde_json::Value {
    yaml::schema::<Form>()
}

/// Settings by name: a plot's axis, and the command line's options.
fn settings_schema(_: &mut SchemaGenerator) -> Schema {
    let axes = Axis::ALL.map(Axis::setting);
    let axis =
        json_schema!({ "description": "Setting on the plot's horizontal axis", "enum": axes });
    let command = Line::command();
    let options = command.get_arguments().filter_map(|argument| {
        let about = argument.get_help().map(ToString::to_string);
        let about = about.unwrap_or_default();
        let names = argument.get_possible_values();
        let names: Vec<&str> = names.iter().map(|value| value.get_name()).collect();
        let one = match names.is_empty() {
            true => json_schema!({ "type": ["number", "string"] }),
            false => json_schema!({ "enum": names }),
        };
        let values = json_schema!({
            "description": about,
            "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }],
        });
        Some((argument.get_long()?.to_owned(), values))
    });
    let properties: BTreeMap<String, Schema> = options.chain([("x".to_owned(), axis)]).collect();
    json_schema!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

/// Experiments by name, at least one.
fn experiments_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "minProperties": 1,
        "propertyNames": { "pattern": "^[A-Za-z0-9_-]{1,63}$" },
        "additionalProperties": settings_schema(generator),
    })
}

type Settings = BTreeMap<String, Spanned<Values>>;

/// One value or a list of values, as written; values of a list have their own locations.
#[derive(Clone)]
struct Values(Vec<(String, Option<Location>)>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or a list of values")
            }

            fn visit_i64<E>(self, value: i64) -> Result<Values, E> {
                Ok(one(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Values, E> {
                Ok(one(value))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Values, E> {
                Ok(one(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Values, E> {
                Ok(one(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(element) = list.next_element::<Spanned<Values>>()? {
                    let place = element.referenced;
                    let texts = element.value.0.into_iter();
                    values.extend(texts.map(|(text, at)| (text, at.or(Some(place)))));
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

fn one(value: impl ToString) -> Values {
    Values(vec![(value.to_string(), None)])
}

/// A file's settings are the command line's options, read by the same parser.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// A setting with one of its values.
#[derive(Clone)]
struct Chosen {
    name: String,
    value: String,
    at: Location,
}

/// Parses a file; errors name it `source`.
///
/// # Errors
/// The first problem, with its location in the file.
pub fn parse(text: &str, source: &str) -> Result<File, LoadError> {
    let form: Form = yaml::parse(text, source)?;
    if form.experiments.value.is_empty() {
        let problem = Problem::Nothing;
        return Err(yaml::invalid(
            source,
            &form.experiments,
            "experiments",
            problem,
        ));
    }
    let mut experiments = Vec::new();
    let mut room = MAX_RUNS;
    for (name, settings) in form.experiments.value {
        let mut merged = form.all.clone();
        merged.extend(settings.value.clone());
        let reader = Reader {
            source,
            field: format!("experiments.{name}"),
            whole: settings.referenced,
        };
        let grid = reader.grid(name, merged, room)?;
        room -= grid.runs.len();
        experiments.push(grid);
    }
    Ok(File {
        title: form.title,
        experiments,
    })
}

/// Reads one experiment.
struct Reader<'a> {
    source: &'a str,
    /// The field's name in errors.
    field: String,
    whole: Location,
}

impl Reader<'_> {
    fn error(&self, at: Location, setting: Option<&str>, problem: Problem) -> LoadError {
        let field = match setting {
            Some(setting) => format!("{}.{setting}", self.field),
            None => self.field.clone(),
        };
        LoadError::at(&FilePosition::new(self.source, at), &field, problem)
    }

    fn grid(&self, name: String, mut settings: Settings, room: usize) -> Result<Grid, LoadError> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(is_name) {
            return Err(self.error(self.whole, None, Problem::Name));
        }
        let x = self.axis(settings.remove("x"))?;
        let known: Vec<String> = Line::command()
            .get_arguments()
            .filter_map(|argument| Some(argument.get_long()?.to_owned()))
            .collect();
        let mut combinations: Vec<Vec<Chosen>> = vec![Vec::new()];
        for (setting, values) in self.ordered(x, settings) {
            let at = values.referenced;
            if !known.contains(&setting) {
                let problem = Problem::Setting(known.join(", "));
                return Err(self.error(at, Some(&setting), problem));
            }
            if values.value.0.is_empty() {
                return Err(self.error(at, Some(&setting), Problem::Empty));
            }
            if combinations.len() * values.value.0.len() > room {
                return Err(self.error(at, Some(&setting), Problem::Runs));
            }
            let choices = values.value.0.into_iter().map(|(value, own)| Chosen {
                name: setting.clone(),
                value,
                at: own.unwrap_or(at),
            });
            let choices: Vec<Chosen> = choices.collect();
            combinations = combinations
                .iter()
                .flat_map(|before| {
                    choices.iter().map(|choice| {
                        let mut combination = before.clone();
                        combination.push(choice.clone());
                        combination
                    })
                })
                .collect();
        }
        if !combinations[0].iter().any(|c| c.name == x.setting()) {
            return Err(self.error(self.whole, None, Problem::NoValues(x.setting())));
        }
        let alike: Vec<bool> = (0..combinations[0].len())
            .map(|at| {
                combinations
                    .iter()
                    .all(|c| c[at].value == combinations[0][at].value)
            })
            .collect();
        let others = |chosen: &Chosen| ![x.setting(), "algorithm", "seed"].contains(&&*chosen.name);
        let written = |chosen: &Chosen| (chosen.name.clone(), chosen.value.clone());
        let fixed = combinations[0]
            .iter()
            .zip(&alike)
            .filter(|(chosen, alike)| **alike && others(chosen))
            .map(|(chosen, _)| written(chosen))
            .collect();
        let run = |combination: &Vec<Chosen>| {
            let on_axis = combination.iter().find(|c| c.name == x.setting());
            let varied = combination.iter().zip(&alike);
            Ok(Run {
                experiment: self.experiment(combination)?,
                x: on_axis.map(|c| c.value.clone()).unwrap_or_default(),
                panel: varied
                    .filter(|(chosen, alike)| !**alike && others(chosen))
                    .map(|(chosen, _)| written(chosen))
                    .collect(),
            })
        };
        Ok(Grid {
            name,
            x,
            fixed,
            runs: combinations.iter().map(run).collect::<Result<_, _>>()?,
        })
    }

    fn axis(&self, x: Option<Spanned<Values>>) -> Result<Axis, LoadError> {
        let Some(x) = x else {
            return Err(self.error(self.whole, None, Problem::NoAxis));
        };
        let named = |axis: &Axis| matches!(&x.value.0[..], [(name, _)] if name == axis.setting());
        let found = Axis::ALL.into_iter().find(named);
        found.ok_or_else(|| self.error(x.referenced, Some("x"), Problem::Axis))
    }

    /// Rows of a table stand by what makes panels, then by the axis, the algorithm and the seed.
    fn ordered(&self, x: Axis, settings: Settings) -> Vec<(String, Spanned<Values>)> {
        let last = [x.setting(), "algorithm", "seed"];
        let mut ordered: Vec<_> = settings.into_iter().collect();
        ordered.sort_by_key(|(name, _)| last.iter().position(|last| last == name).map(|at| at + 1));
        ordered
    }

    fn experiment(&self, combination: &[Chosen]) -> Result<Experiment, LoadError> {
        let arguments = combination
            .iter()
            .map(|chosen| format!("--{}={}", chosen.name, chosen.value));
        let line = Line::try_parse_from(arguments).map_err(|error| {
            let of = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(option)) => combination.iter().find(|chosen| {
                    let named = option.strip_prefix("--").unwrap_or(option);
                    named.split(' ').next() == Some(&chosen.name)
                }),
                _ => None,
            };
            let (at, name) = of.map_or((self.whole, None), |c| (c.at, Some(&*c.name)));
            let line = ultima_console::error_line::clap_line(&error);
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            self.error(at, name, Problem::Value(line.to_owned()))
        })?;
        let experiment = line.options.experiment();
        experiment
            .validate()
            .map_err(|error| self.error(self.whole, None, Problem::Value(error.to_string())))?;
        Ok(experiment)
    }
}

#[cfg(test)]
mod tests {
    use ultima_sim::Algorithm;

    use super::*;
    /// True if the schema allows the document.
    fn accepts(schema: &serde_json::Value, yaml: &str) -> bool {
        let document = serde_yaml::from_str(yaml).expect("YAML");
        let validator = jsonschema::validator_for(schema).expect("a schema");
        validator.is_valid(&document)
    }

    #[test]
    fn lists_are_run_in_all_combinations() {
        let text = "
title: A title
all: { operations: 7, bytes: 1M, tail: 2 }
experiments:
  sizes: { x: bytes, bytes: [4k, 8k] }
  ranks:
    x: ranks
    ranks: [4, 8]
    tail: [1.5, 3]
    loss: 0.01:4
    algorithm: [tar, ring]
    seed: [1, 2]
";
        let file = parse(text, "e.yaml").expect("well formed");
        assert_eq!(file.title.as_deref(), Some("A title"));
        let names: Vec<&str> = file.experiments.iter().map(|grid| &*grid.name).collect();
        assert_eq!(names, ["ranks", "sizes"]);
        let [ranks, sizes] = &file.experiments[..] else {
            unreachable!("two")
        };
        assert_eq!(
            (ranks.x, ranks.runs.len(), sizes.runs.len()),
            (Axis::Ranks, 16, 2)
        );
        let of = |run: &Run| {
            let e = &run.experiment;
            (e.tail, e.ranks, e.algorithm, e.seed)
        };
        assert_eq!(of(&ranks.runs[0]), (1.5, 4, Algorithm::Tar, 1));
        assert_eq!(of(&ranks.runs[3]), (1.5, 4, Algorithm::Ring, 2));
        assert_eq!(of(&ranks.runs[15]), (3.0, 8, Algorithm::Ring, 2));
        let written = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(ranks.runs[15].panel, [written("tail", "3")]);
        assert!(ranks.fixed.contains(&written("loss", "0.01:4")));
        assert_eq!(sizes.runs[1].experiment.bytes, 8192);
        assert_eq!(
            (sizes.runs[1].experiment.tail, &*sizes.runs[1].x),
            (2.0, "8k")
        );
    }

    #[test]
    fn the_schema_says_what_the_reader_says() {
        let schema = schema();
        for text in [
            include_str!("../../../sim/experiments/published.yaml"),
            include_str!("../../../sim/experiments/scale.yaml"),
        ] {
            assert!(accepts(&schema, text));
        }
        let good =
            "{ title: a, all: { bytes: 1M }, experiments: { a: { x: loss, loss: [0, 0.01:4] } } }";
        let replaced = |(from, to): (&str, &str)| {
            assert!(good.contains(from), "{from}");
            good.replace(from, to)
        };
        for like in [
            ("title: a, ", ""),
            (
                "bytes: 1M",
                "bytes: [1000, 1M], algorithm: ring, min-rto: 10ms",
            ),
            ("a: { x", "A_1-b: { seed: [1, 2], x"),
        ] {
            let good = replaced(like);
            assert!(accepts(&schema, &good), "{good}");
            parse(&good, "e.yaml").expect(&good);
        }
        for unlike in [
            ("title: a", "name: a"),
            ("title: a", "title: [a]"),
            ("bytes: 1M", "byte: 1M"),
            ("bytes: 1M", "bytes: { of: 1M }"),
            ("bytes: 1M", "bytes: []"),
            ("bytes: 1M", "algorithm: rings"),
            ("bytes: 1M", "help: 1"),
            ("x: loss", "x: seed"),
            ("a: { x", "a/b: { x"),
            ("{ a: { x: loss, loss: [0, 0.01:4] } }", "{}"),
        ] {
            let wrong = replaced(unlike);
            assert!(!accepts(&schema, &wrong), "{wrong}");
            assert!(parse(&wrong, "e.yaml").is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_say_where() {
        let many = "experiments:\n  a: { x: ranks, ranks: [4, 8], seed: [SEEDS] }\n"
            .replace("SEEDS", &["1"; MAX_RUNS].join(","));
        for (text, said) in [
            ("", "e.yaml:"),
            (
                "experiments: {}\n",
                "e.yaml:1:14: experiments: no experiments",
            ),
            ("experiment: {}\n", "e.yaml:1:1: "),
            (
                "experiments:\n  a:\n    ranks: 4\n",
                "e.yaml:3:5: experiments.a: x is missing",
            ),
            (
                "experiments:\n  a: { x: seed }\n",
                "e.yaml:2:11: experiments.a.x: x: expected ranks, bytes",
            ),
            (
                "experiments:\n  a: { x: ranks, tail: 3 }\n",
                "e.yaml:2:6: experiments.a: x is ranks, but ranks has no values",
            ),
            (
                "experiments:\n  a: { x: ranks, ranks: [4, 8], tails: 3 }\n",
                "e.yaml:2:40: experiments.a.tails: unknown setting; expected x, algorithm",
            ),
            (
                "experiments:\n  a: { x: ranks, ranks: [4, many] }\n",
                "e.yaml:2:29: experiments.a.ranks: invalid value 'many'",
            ),
            (
                "experiments:\n  a: { x: ranks, ranks: [] }\n",
                "e.yaml:2:25: experiments.a.ranks: empty list",
            ),
            (
                "all: { t-s: 1ms }\nexperiments:\n  a: { x: ranks, ranks: 4 }\n",
                "e.yaml:3:6: experiments.a: ",
            ),
            (
                "experiments:\n  a: { x: ranks, ranks: [4, 1] }\n",
                "e.yaml:2:6: experiments.a: 1 ranks: expected 2 to 8192",
            ),
            (
                "experiments:\n  a/b: { x: ranks, ranks: 4 }\n",
                "e.yaml:2:8: experiments.a/b: invalid name; use",
            ),
            (
                "experiments:\n  a: { x: ranks, ranks: { of: 4 } }\n",
                "e.yaml:2:25: ",
            ),
            (
                &many,
                "e.yaml:2:39: experiments.a.seed: more than 10000 runs",
            ),
        ] {
            let error = parse(text, "e.yaml").expect_err(text).to_string();
            assert!(error.starts_with(said), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
