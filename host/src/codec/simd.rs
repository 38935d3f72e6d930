//! Vectors of the CPU at hand.
//!
//! Every implementation adds, subtracts and multiplies single values in IEEE 754 arithmetic, and rounds after each operation, so
//! all of them return the same bits, but for the payloads of NaN. On x86, a difference is a fused multiplication by -1 and addition, which has one
//! rounding: AMD's processors add in two of four pipelines, and fuse in the other two.

/// Values in a row of a tile.
pub(crate) const LANES: usize = 16;

/// One entry of each lane: a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub(crate) struct Row(pub(crate) [f32; LANES]);

impl Row {
    pub(crate) const ZERO: Row = Row([0.0; LANES]);
}

/// Vector instructions. A value of such a type exists only if the CPU has them.
pub(crate) trait Simd: Copy {
    /// A vector of [`Simd::WIDTH`] values.
    type Vector: Copy;

    /// Values in a vector: a divisor of [`LANES`].
    const WIDTH: usize;

    fn zero(self) -> Self::Vector;

    /// Loads part `part` of a row, which has [`LANES`] / [`Simd::WIDTH`] parts.
    fn load(self, row: &[f32; LANES], part: usize) -> Self::Vector;

    /// Stores part `part` of a row.
    fn store(self, vector: Self::Vector, row: &mut [f32; LANES], part: usize);

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    fn scale(self, vector: Self::Vector, factor: f32) -> Self::Vector;

    /// A butterfly stage within a vector, between values at `distance` 1, 2, 4 or 8: the sum in place of the
    /// first, the difference in place of the second.
    fn across(self, vector: Self::Vector, distance: usize) -> Self::Vector;

    /// Negates value *i* where bit *i* is set.
    fn flip(self, vector: Self::Vector, bits: u16) -> Self::Vector;

    /// Transposes a square of [`Simd::WIDTH`] vectors.
    fn transpose(self, square: &mut [Self::Vector]);

    /// Asks for the cache line of `at`. Any address is allowed.
    fn prefetch(self, at: *const f32);
}

/// Work to run with the instructions that [`Cpu`] has. Implementations are `#[inline(always)]`: they take over
/// the instruction set of their caller.
pub(crate) trait Task {
    /// `R` is the number of rows whose parts fit the registers.
    fn run<S: Simd, const R: usize>(self, simd: S);
}

/// Instruction set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cpu {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Cpu {
    /// The instruction sets that this CPU has, the fastest last.
    pub(crate) fn available() -> impl Iterator<Item = Cpu> {
        let all = [
            Some(Cpu::Portable),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(Cpu::Neon),
            #[cfg(target_arch = "x86_64")]
            x86::Avx2::detect().map(Cpu::Avx2),
            #[cfg(target_arch = "x86_64")]
            x86::Avx512::detect().map(Cpu::Avx512),
        ];
        all.into_iter().flatten()
    }

    /// The fastest instruction set that this CPU has.
    pub(crate) fn fastest() -> Cpu {
        Cpu::available().last().unwrap_or(Cpu::Portable)
    }

    /// Runs `task` with this instruction set.
    pub(crate) fn run(self, task: impl Task) {
        match self {
            Cpu::Portable => task.run::<_, 8>(Portable),
            #[cfg(target_arch = "aarch64")]
            Cpu::Neon(neon) => neon.run(task),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(avx2) => avx2.run(task),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(avx512) => avx512.run(task),
        }
    }
}

/// Arrays, which the compiler turns into vectors of SSE2.
#[derive(Clone, Copy)]
struct Portable;

impl Simd for Portable {
    type Vector = [f32; 4];
    const WIDTH: usize = 4;

    #[inline(always)]
    fn zero(self) -> [f32; 4] {
        [0.0; 4]
    }

    #[inline(always)]
    fn load(self, row: &[f32; LANES], part: usize) -> [f32; 4] {
        row.as_chunks().0[part]
    }

    #[inline(always)]
    fn store(self, vector: [f32; 4], row: &mut [f32; LANES], part: usize) {
        row.as_chunks_mut().0[part] = vector;
    }

    #[inline(always)]
    fn add(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
    }

    #[inline(always)]
    fn sub(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        [a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]]
    }

    #[inline(always)]
    fn scale(self, vector: [f32; 4], factor: f32) -> [f32; 4] {
        vector.map(|value| value * factor)
    }

    #[inline(always)]
    fn across(self, [a, b, c, d]: [f32; 4], distance: usize) -> [f32; 4] {
        match distance {
            1 => [a + b, a - b, c + d, c - d],
            _ => [a + c, b + d, a - c, b - d],
        }
    }

    #[inline(always)]
    fn flip(self, vector: [f32; 4], bits: u16) -> [f32; 4] {
        let masks = &SIGNS_OF_FOUR[usize::from(bits % 16)];
        std::array::from_fn(|lane| f32::from_bits(vector[lane].to_bits() ^ masks[lane]))
    }

    #[inline(always)]
    fn transpose(self, square: &mut [[f32; 4]]) {
        let [a, b, c, d] = square else {
            unreachable!("a square of 4 vectors")
        };
        (a[1], b[0]) = (b[0], a[1]);
        (a[2], c[0]) = (c[0], a[2]);
        (a[3], d[0]) = (d[0], a[3]);
        (b[2], c[1]) = (c[1], b[2]);
        (b[3], d[1]) = (d[1], b[3]);
        (c[3], d[2]) = (d[2], c[3]);
    }

    #[inline(always)]
    fn prefetch(self, _: *const f32) {}
}

/// The sign bits of four values, by the four random bits that decide them. Not every CPU has vector shifts by
/// lane.
const SIGNS_OF_FOUR: [[u32; 4]; 16] = {
    let mut signs = [[0; 4]; 16];
    let mut bits = 0;
    while bits < 16 {
        let mut at = 0;
        while at < 4 {
            signs[bits][at] = (bits as u32 >> at & 1) << 31;
            at += 1;
        }
        bits += 1;
    }
    signs
};

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{LANES, SIGNS_OF_FOUR, Simd, Task};

    /// NEON.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) struct Neon(());

    impl Neon {
        pub(super) fn detect() -> Option<Self> {
            std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
        }

        pub(super) fn run(self, task: impl Task) {
            #[target_feature(enable = "neon")]
            fn run(simd: Neon, task: impl Task) {
                task.run::<_, 16>(simd);
            }
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe { run(self, task) }
        }
    }

    impl Simd for Neon {
        type Vector = float32x4_t;
        const WIDTH: usize = 4;

        #[inline(always)]
        fn zero(self) -> float32x4_t {
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe { vdupq_n_f32(0.0) }
        }

        #[inline(always)]
        fn load(self, row: &[f32; LANES], part: usize) -> float32x4_t {
            let values: &[f32; 4] = &row.as_chunks().0[part];
            // SAFETY: `self` exists, so the CPU has NEON; `values` are 4.
            unsafe { vld1q_f32(values.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, vector: float32x4_t, row: &mut [f32; LANES], part: usize) {
            let values: &mut [f32; 4] = &mut row.as_chunks_mut().0[part];
            // SAFETY: as in `load`.
            unsafe { vst1q_f32(values.as_mut_ptr(), vector) }
        }

        #[inline(always)]
        fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe { vaddq_f32(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe { vsubq_f32(a, b) }
        }

        #[inline(always)]
        fn scale(self, vector: float32x4_t, factor: f32) -> float32x4_t {
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe { vmulq_n_f32(vector, factor) }
        }

        #[inline(always)]
        fn across(self, vector: float32x4_t, distance: usize) -> float32x4_t {
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe {
                match distance {
                    1 => {
                        let swapped = vrev64q_f32(vector);
                        let (sums, differences) =
                            (vaddq_f32(swapped, vector), vsubq_f32(swapped, vector));
                        // Values 0, 1, 2, 3: a+b, a−b, c+d, c−d.
                        vtrn1q_f32(sums, vrev64q_f32(differences))
                    }
                    _ => {
                        let swapped = vextq_f32::<2>(vector, vector);
                        let (sums, differences) =
                            (vaddq_f32(swapped, vector), vsubq_f32(swapped, vector));
                        vcombine_f32(vget_low_f32(sums), vget_high_f32(differences))
                    }
                }
            }
        }

        #[inline(always)]
        fn flip(self, vector: float32x4_t, bits: u16) -> float32x4_t {
            let signs = &SIGNS_OF_FOUR[usize::from(bits % 16)];
            // SAFETY: `self` exists, so the CPU has NEON; `signs` are 4.
            unsafe {
                let flipped = veorq_u32(vreinterpretq_u32_f32(vector), vld1q_u32(signs.as_ptr()));
                vreinterpretq_f32_u32(flipped)
            }
        }

        #[inline(always)]
        fn transpose(self, square: &mut [float32x4_t]) {
            let [a, b, c, d] = square else {
                unreachable!("a square of 4 vectors")
            };
            // SAFETY: `self` exists, so the CPU has NEON.
            unsafe {
                let ab_even = vreinterpretq_f64_f32(vtrn1q_f32(*a, *b));
                let ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(*a, *b));
                let cd_even = vreinterpretq_f64_f32(vtrn1q_f32(*c, *d));
                let cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(*c, *d));
                *a = vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even));
                *b = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd));
                *c = vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even));
                *d = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
            }
        }

        /// Nothing: the intrinsic is not stable.
        #[inline(always)]
        fn prefetch(self, _: *const f32) {}
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{LANES, Simd, Task};

    /// AVX-512F.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) struct Avx512(());

    /// AVX2 and FMA.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) struct Avx2(());

    /// Instructions with vectors `V`. It exists only where the CPU has them.
    #[derive(Clone, Copy)]
    struct Fused<V> {
        /// Ones. The compiler must not know them: it would replace fused operations.
        one: V,
    }

    impl Avx512 {
        pub(super) fn detect() -> Option<Self> {
            is_x86_feature_detected!("avx512f").then_some(Self(()))
        }

        pub(super) fn run(self, task: impl Task) {
            #[target_feature(enable = "avx512f")]
            fn run(task: impl Task) {
                let one = black_box(_mm512_set1_ps(1.0));
                task.run::<_, 16>(Fused { one });
            }
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe { run(task) }
        }
    }

    impl Avx2 {
        pub(super) fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"))
                .then_some(Self(()))
        }

        pub(super) fn run(self, task: impl Task) {
            #[target_feature(enable = "avx2,fma")]
            fn run(task: impl Task) {
                let one = black_box(_mm256_set1_ps(1.0));
                task.run::<_, 8>(Fused { one });
            }
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe { run(task) }
        }
    }

    impl Simd for Fused<__m512> {
        type Vector = __m512;
        const WIDTH: usize = 16;

        #[inline(always)]
        fn zero(self) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        fn load(self, row: &[f32; LANES], _: usize) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F; a row is 16 values.
            unsafe { _mm512_loadu_ps(row.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, vector: __m512, row: &mut [f32; LANES], _: usize) {
            // SAFETY: as in `load`.
            unsafe { _mm512_storeu_ps(row.as_mut_ptr(), vector) }
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe { _mm512_fnmadd_ps(b, self.one, a) }
        }

        #[inline(always)]
        fn scale(self, vector: __m512, factor: f32) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe { _mm512_mul_ps(vector, _mm512_set1_ps(factor)) }
        }

        #[inline(always)]
        fn across(self, vector: __m512, distance: usize) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe {
                let (swapped, second) = match distance {
                    1 => (_mm512_permute_ps::<0b10_11_00_01>(vector), 0xaaaa),
                    2 => (_mm512_permute_ps::<0b01_00_11_10>(vector), 0xcccc),
                    4 => (
                        _mm512_shuffle_f32x4::<0b10_11_00_01>(vector, vector),
                        0xf0f0,
                    ),
                    _ => (
                        _mm512_shuffle_f32x4::<0b01_00_11_10>(vector, vector),
                        0xff00,
                    ),
                };
                let sums = _mm512_add_ps(swapped, vector);
                _mm512_mask_sub_ps(sums, second, swapped, vector)
            }
        }

        #[inline(always)]
        fn flip(self, vector: __m512, bits: u16) -> __m512 {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe {
                let values = _mm512_castps_si512(vector);
                let sign = _mm512_set1_epi32(i32::MIN);
                _mm512_castsi512_ps(_mm512_mask_xor_epi32(values, bits, values, sign))
            }
        }

        /// Two rounds exchange values within 128-bit quarters, two exchange quarters.
        #[inline(always)]
        fn transpose(self, square: &mut [__m512]) {
            // SAFETY: `self` exists, so the CPU has AVX-512F.
            unsafe {
                // Quarter q of square[4g+i] becomes column 4q+i of rows 4g to 4g+3.
                for g in [0, 4, 8, 12] {
                    let [a, b, c, d] = [square[g], square[g + 1], square[g + 2], square[g + 3]];
                    let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                    let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                    square[g] = _mm512_shuffle_ps::<0x44>(ab_low, cd_low);
                    square[g + 1] = _mm512_shuffle_ps::<0xee>(ab_low, cd_low);
                    square[g + 2] = _mm512_shuffle_ps::<0x44>(ab_high, cd_high);
                    square[g + 3] = _mm512_shuffle_ps::<0xee>(ab_high, cd_high);
                }
                // A 4×4 transposition of quarters for each i.
                for i in 0..4 {
                    let [a, b, c, d] = [square[i], square[i + 4], square[i + 8], square[i + 12]];
                    let ab_low = _mm512_shuffle_f32x4::<0x44>(a, b);
                    let ab_high = _mm512_shuffle_f32x4::<0xee>(a, b);
                    let cd_low = _mm512_shuffle_f32x4::<0x44>(c, d);
                    let cd_high = _mm512_shuffle_f32x4::<0xee>(c, d);
                    square[i] = _mm512_shuffle_f32x4::<0x88>(ab_low, cd_low);
                    square[i + 4] = _mm512_shuffle_f32x4::<0xdd>(ab_low, cd_low);
                    square[i + 8] = _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high);
                    square[i + 12] = _mm512_shuffle_f32x4::<0xdd>(ab_high, cd_high);
                }
            }
        }

        #[inline(always)]
        fn prefetch(self, at: *const f32) {
            // SAFETY: a prefetch of any address has no effect but on speed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
    }

    impl Simd for Fused<__m256> {
        type Vector = __m256;
        const WIDTH: usize = 8;

        #[inline(always)]
        fn zero(self) -> __m256 {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        fn load(self, row: &[f32; LANES], part: usize) -> __m256 {
            let values: &[f32; 8] = &row.as_chunks().0[part];
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA; `values` are 8.
            unsafe { _mm256_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, vector: __m256, row: &mut [f32; LANES], part: usize) {
            let values: &mut [f32; 8] = &mut row.as_chunks_mut().0[part];
            // SAFETY: as in `load`.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), vector) }
        }

        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe { _mm256_fnmadd_ps(b, self.one, a) }
        }

        #[inline(always)]
        fn scale(self, vector: __m256, factor: f32) -> __m256 {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe { _mm256_mul_ps(vector, _mm256_set1_ps(factor)) }
        }

        #[inline(always)]
        fn across(self, vector: __m256, distance: usize) -> __m256 {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe {
                let swapped = match distance {
                    1 => _mm256_permute_ps::<0b10_11_00_01>(vector),
                    2 => _mm256_permute_ps::<0b01_00_11_10>(vector),
                    _ => _mm256_permute2f128_ps::<1>(vector, vector),
                };
                let sums = _mm256_add_ps(swapped, vector);
                let differences = _mm256_sub_ps(swapped, vector);
                match distance {
                    1 => _mm256_blend_ps::<0xaa>(sums, differences),
                    2 => _mm256_blend_ps::<0xcc>(sums, differences),
                    _ => _mm256_blend_ps::<0xf0>(sums, differences),
                }
            }
        }

        #[inline(always)]
        fn flip(self, vector: __m256, bits: u16) -> __m256 {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe {
                // Bit i moves to the sign of value i.
                let bits = _mm256_set1_epi32(i32::from(bits));
                let shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
                let sign = _mm256_set1_epi32(i32::MIN);
                let signs = _mm256_and_si256(_mm256_sllv_epi32(bits, shifts), sign);
                _mm256_xor_ps(vector, _mm256_castsi256_ps(signs))
            }
        }

        /// Two rounds exchange values within 128-bit halves, one exchanges halves.
        #[inline(always)]
        fn transpose(self, square: &mut [__m256]) {
            // SAFETY: `self` exists, so the CPU has AVX2 and FMA.
            unsafe {
                for g in [0, 4] {
                    let [a, b, c, d] = [square[g], square[g + 1], square[g + 2], square[g + 3]];
                    let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    square[g] = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
                    square[g + 1] = _mm256_shuffle_ps::<0xee>(ab_low, cd_low);
                    square[g + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
                    square[g + 3] = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
                }
                for i in 0..4 {
                    let (a, b) = (square[i], square[i + 4]);
                    square[i] = _mm256_permute2f128_ps::<0x20>(a, b);
                    square[i + 4] = _mm256_permute2f128_ps::<0x31>(a, b);
                }
            }
        }

        #[inline(always)]
        fn prefetch(self, at: *const f32) {
            // SAFETY: a prefetch of any address has no effect but on speed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
    }
}
