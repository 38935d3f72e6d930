//! Parses a line from its start.

use super::literal::Literal;

/// The rest of a line. Skips spaces before each token.
pub struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    /// Starts at the beginning of a line.
    pub fn new(line: &'a str) -> Self {
        Cursor(line)
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.trim_start().is_empty()
    }

    /// Takes the rest of the line.
    pub fn rest(&mut self) -> &'a str {
        std::mem::take(&mut self.0).trim()
    }

    /// Takes `sign` if it comes next, and returns whether it does.
    pub fn eat(&mut self, sign: &str) -> bool {
        self.0 = self.0.trim_start();
        match self.0.strip_prefix(sign) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// As [`eat`](Self::eat), for use with `?`.
    pub fn expect(&mut self, sign: &str) -> Option<()> {
        self.eat(sign).then_some(())
    }

    /// Takes the text up to the next space.
    pub fn word(&mut self) -> Option<&'a str> {
        self.take(|c| !c.is_whitespace())
    }

    /// Takes decimal digits.
    pub fn digits(&mut self) -> Option<&'a str> {
        self.take(|c| c.is_ascii_digit())
    }

    /// Takes a number, which may contain `*`.
    pub fn literal(&mut self) -> Option<Literal> {
        let text = self.take(|c| c.is_ascii_alphanumeric() || c == '*' || c == '.')?;
        Literal::parse(text)
    }

    /// Takes a number that fits the type.
    pub fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let literal = self.literal().filter(|literal| !literal.open)?;
        T::try_from(u64::try_from(literal.value).ok()?).ok()
    }

    /// Takes a decimal number with or without a point.
    pub fn decimal(&mut self) -> Option<f64> {
        self.take(|c| c.is_ascii_digit() || c == '.')?.parse().ok()
    }

    /// Takes a name: letters, digits, `_` and `$`, not starting with a digit; or text in quotes.
    pub fn name(&mut self) -> Option<String> {
        if self.eat("\"") {
            let (name, rest) = self.0.split_once('"')?;
            self.0 = rest;
            return Some(name.to_owned());
        }
        self.0 = self.0.trim_start();
        if self.0.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        self.take(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
            .map(str::to_owned)
    }

    /// Takes names joined by points, each with or without an index: `hdr.vlan[0].id`.
    pub fn qualified_name(&mut self) -> Option<String> {
        let mut qualified = self.name()?;
        loop {
            if self.eat("[") {
                let index = self.digits()?;
                self.expect("]")?;
                qualified = format!("{qualified}[{index}]");
            } else if self.eat(".") {
                qualified = format!("{qualified}.{}", self.name()?);
            } else {
                return Some(qualified);
            }
        }
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> Option<&'a str> {
        self.0 = self.0.trim_start();
        let end = self.0.find(|c| !belongs(c)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        (!taken.is_empty()).then_some(taken)
    }
}
