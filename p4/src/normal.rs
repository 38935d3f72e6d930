//! The committed form of compiler output: JSON without white space, and files without a run's time and id, so that two
//! runs of a compiler give equal bytes.

/// JSON members that describe one run of a compiler. Their values are strings; each character becomes 0.
const OF_A_RUN: [&str; 2] = ["build_date", "run_id"];

/// Returns an assembled binary with its run id set to zeros. The binary begins with a BSON document.
pub(crate) fn binary(mut binary: Vec<u8>) -> Vec<u8> {
    // BSON: the type (2, a string), the name, the length with the final zero, the text.
    let name = b"\x02run_id\0";
    let found = binary.windows(name.len()).position(|bytes| bytes == name);
    if let Some(value) = found.and_then(|at| binary.get_mut(at + name.len() + 4..)) {
        let digits = value.iter_mut().take_while(|byte| **byte != 0);
        digits.for_each(|digit| *digit = b'0');
    }
    binary
}

/// Returns JSON on one line, without white space between tokens, without a run's time and id. Members keep their order.
pub fn json(json: &[u8]) -> Vec<u8> {
    let mut short = Vec::with_capacity(json.len() / 2);
    let mut rest = json;
    let mut zeroes_next = false;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'"' => {
                let (string, behind) = after.split_at(string_length(after));
                rest = behind;
                let is_value = short.last() == Some(&b':');
                short.push(b'"');
                let text = &string[..string.len().saturating_sub(1)];
                match is_value && zeroes_next {
                    true => short.resize(short.len() + text.len(), b'0'),
                    false => short.extend_from_slice(text),
                }
                short.push(b'"');
                zeroes_next = OF_A_RUN
                    .iter()
                    .any(|name| string.strip_suffix(b"\"") == Some(name.as_bytes()));
            }
            b' ' | b'\n' | b'\r' | b'\t' => {}
            _ => short.push(*first),
        }
    }
    short.push(b'\n');
    short
}

/// Returns the number of bytes from behind a string's opening quote to its closing quote, inclusive.
fn string_length(text: &[u8]) -> usize {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_loses_white_space_and_run_and_nothing_else() {
        let printed = br#"{
            "build_date": "Sat Nov 21 09:34:18 2026",
            "zebra" : [ 1, -2.5e3, true ],
            "ant": { "say": "a \"b\" \\", "run_id": "6767e8", "build_date": 3 },
            "empty": ""
        }"#;
        let expected: &[u8] = br#"{"build_date":"000000000000000000000000","zebra":[1,-2.5e3,true],"ant":{"say":"a \"b\" \\","run_id":"000000","build_date":3},"empty":""}
"#;
        assert_eq!(
            String::from_utf8_lossy(&json(printed)),
            String::from_utf8_lossy(expected)
        );
        assert_eq!(json(expected), expected);
    }

    #[test]
    fn binary_loses_its_run_id() {
        let of = |run: &str| {
            let head = b"\x02asm_version\0\x06\0\0\x001.0.1\0\x02run_id\0\x05\0\0\0";
            [&head[..], run.as_bytes(), b"\0\x02target\0 run_id"].concat()
        };
        assert_eq!(binary(of("c0de")), of("0000"));
        assert_eq!(binary(b"\x02run_id\0".to_vec()), b"\x02run_id\0");
        assert_eq!(binary(b"none".to_vec()), b"none");
    }
}
