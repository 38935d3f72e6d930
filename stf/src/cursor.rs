//! A line that is read from its front.

use super::literal::Literal;

/// What is left of a line. Spaces in front of anything are skipped.
pub struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    /// All of a line.
    pub fn new(line: &'a str) -> Self {
        Cursor(line)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.trim_start().is_empty()
    }

    /// Everything up to the end.
    pub fn rest(&mut self) -> &'a str {
        std::mem::take(&mut self.0).trim()
    }

    /// Whether this comes next; if so, it is gone.
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

    /// As [`eat`](Self::eat), to be used with `?`.
    pub fn expect(&mut self, sign: &str) -> Option<()> {
        self.eat(sign).then_some(())
    }

    /// Everything up to the next space.
    pub fn word(&mut self) -> Option<&'a str> {
        self.take(|c| !c.is_whitespace())
    }

    /// Decimal digits.
    pub fn digits(&mut self) -> Option<&'a str> {
        self.take(|c| c.is_ascii_digit())
    }

    /// A number, `*` allowed.
    pub fn literal(&mut self) -> Option<Literal> {
        let text = self.take(|c| c.is_ascii_alphanumeric() || c == '*' || c == '.')?;
        Literal::parse(text)
    }

    /// A number that fits.
    pub fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let literal = self.literal().filter(|literal| !literal.open)?;
        T::try_from(u64::try_from(literal.value).ok()?).ok()
    }

    /// A number with or without a point.
    pub fn decimal(&mut self) -> Option<f64> {
        self.take(|c| c.is_ascii_digit() || c == '.')?.parse().ok()
    }

    /// A name: letters, digits, `_` and `$`, the first of them no digit; or anything in quotes.
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

    /// Names with points between them, each with or without an index: `hdr.vlan[0].id`.
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
