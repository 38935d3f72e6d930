//! The time axis, and times as text.

/// A time axis in seconds, labelled in a suitable unit.
#[derive(Clone, Copy, Debug)]
pub struct TimeScale {
    /// The left end.
    pub from: f64,
    /// The right end.
    pub to: f64,
}

/// A unit of time: its length in seconds, and its name.
type Unit = (f64, &'static str);

fn unit(seconds: f64) -> Unit {
    match seconds {
        s if s < 1e-3 => (1e-6, "µs"),
        s if s < 1.0 => (1e-3, "ms"),
        _ => (1.0, "s"),
    }
}

impl TimeScale {
    /// The unit of its labels.
    pub fn unit(&self) -> Unit {
        unit(self.to.max(-self.from))
    }

    /// The position of a time, clamped to 0 to 1.
    pub fn share(&self, seconds: f64) -> f64 {
        ((seconds - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// True if a time is on the axis.
    pub fn shows(&self, seconds: f64) -> bool {
        (self.from..=self.to).contains(&seconds)
    }

    /// About six to ten round times on the axis, with labels in [`TimeScale::unit`].
    pub fn marks(&self) -> Vec<(f64, String)> {
        let (second, _) = self.unit();
        let (from, to) = (self.from / second, self.to / second);
        let rough = (to - from) / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let first = (from / step).ceil() as i64;
        let last = (to / step).floor() as i64;
        let mark = |n: i64| {
            let value = n as f64 * step;
            (value * second, format!("{value:.digits$}"))
        };
        (first..=last).map(mark).collect()
    }
}

/// A time with three significant digits.
pub fn text(seconds: f64) -> String {
    let (second, name) = unit(seconds.abs());
    let value = seconds / second;
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        let marks = |from: f64, to: f64| -> Vec<String> {
            let scale = TimeScale { from, to };
            scale.marks().into_iter().map(|mark| mark.1).collect()
        };
        assert_eq!(
            marks(-0.0004, 0.0123),
            ["0", "2", "4", "6", "8", "10", "12"]
        );
        assert_eq!(
            marks(0.0, 8e-6),
            ["0", "1", "2", "3", "4", "5", "6", "7", "8"]
        );
        for to in [1e-9, 3e-7, 0.00099, 0.7, 1.0, 59.0, 1e6] {
            let count = marks(-to / 7.0, to).len();
            assert!((4..=10).contains(&count), "{to}: {count}");
        }
    }

    #[test]
    fn times_have_units() {
        let texts = [0.0, 1.5e-6, 0.000_999, 0.0123, 0.25, 2.0].map(text);
        let expected = [
            "0.00 µs", "1.50 µs", "999 µs", "12.3 ms", "250 ms", "2.00 s",
        ];
        assert_eq!(texts, expected);
    }
}
