// Gate and up as one product, and what follows it: out = silu(x . gate) * (x . up), in one kernel for cards of compute
// capability 9.0. Nothing between the product and its activation reaches memory of the card.
//
// x [row, k] and the weights [2 * width, k] are e4m3 codes (CODED) or values; out [row, width] is e4m3 codes (CODES)
// or values. Values are float16 (HALF) or bfloat16. Weights come as workbench/graph/joined.py lays them: tiles of 128 rows of gate, then the same 128 of up,
// each in an order that gives a thread 16 bytes side by side of `out`.
//
// Sums of codes stay in the instruction's accumulators from first to last, as in cuBLAS with fast accumulation; they hold
// fewer bits there than float32 does.
//
// Two programs form a cluster over 256 rows of x and 128 outputs: each loads its own rows and half of the weights,
// which the copy engine delivers to both. In each, one warp group loads and two multiply. Programs take tiles until none
// is left, so that loads of the next tile run while this one is activated.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct alignas(64) TensorMap {
  u64 words[16];
};

constexpr int ITEM = CODED ? 1 : 2;               // bytes of an element of x and weights
constexpr int ROWS = 128, COLUMNS = 256;          // of a program's product; its outputs are half the columns
constexpr int SLICE = 128;                        // bytes along k in one stage: one swizzled line
constexpr int STAGES = 4;
constexpr int GROUP = CODED ? 16 : 8;             // tiles along the rows that are taken before the next column, for L2
constexpr u32 X_BYTES = ROWS * SLICE, STAGE_BYTES = X_BYTES + COLUMNS * SLICE, HALF_BYTES = COLUMNS / 2 * SLICE;

// Barriers in shared memory ------------------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\n"
      "bra AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}

__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Loads and products -------------------------------------------------------------------------------------------------

__device__ __forceinline__ void load(u32 to, const TensorMap* map, u32 barrier, int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(to), "l"(map), "r"(barrier), "r"(k), "r"(row) : "memory");
}

__device__ __forceinline__ void load_for_both(u32 to, const TensorMap* map, u32 barrier, int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to), "l"(map), "r"(barrier), "h"((u16)3), "r"(k), "r"(row) : "memory");
}

// lines of 128 bytes, swizzled, 1,024 bytes from eight lines to the next
__device__ __forceinline__ u64 describe(u32 at) {
  return (u64)((at & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// 64 rows by 256 columns over 32 bytes of k: a thread's sums `d` lie as the instruction defines, four to eight columns
__device__ __forceinline__ void multiply(float (&d)[128], u64 x, u64 weights, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
#if CODED
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {"
#elif HALF
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
#else
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
#endif
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, add, 1, 1"
#if !CODED
      ", 0, 0"
#endif
      ";\n}"
      : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
      : "l"(x), "l"(weights), "r"(add));
}

// Activation ---------------------------------------------------------------------------------------------------------

// silu(2 h) = h + h tanh(h)
__device__ __forceinline__ float activate(float gate, float up, float half_scale, float up_scale) {
  float h = gate * half_scale, t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
  return (h * t + h) * (up * up_scale);
}

__device__ __forceinline__ u16 two_codes(float first, float second) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}

__device__ __forceinline__ u32 two_values(float first, float second) {
  u32 values;
#if HALF
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(values) : "f"(second), "f"(first));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(values) : "f"(second), "f"(first));
#endif
  return values;
}

// Writes the outputs of one row that a thread holds: in each run of eight columns it has two, at `d[4 * run]`.
__device__ __forceinline__ void write_row(uint4* to, const float (&d)[128], int second_row, float half_scale,
                                          float up_scale) {
  constexpr int RUNS = CODES ? 8 : 4;  // that give 16 bytes
#pragma unroll
  for (int part = 0; part < 16 / RUNS; part++) {
    u32 words[4];
#pragma unroll
    for (int word = 0; word < 4; word++) {
      float y[RUNS / 2];
#pragma unroll
      for (int i = 0; i < RUNS / 2; i++) {
        const int at = 4 * (part * RUNS + word * (RUNS / 4) + i / 2) + 2 * second_row + i % 2;
        y[i] = activate(d[at], d[at + 64], half_scale, up_scale);
      }
#if CODES
      words[word] = (u32)two_codes(y[0], y[1]) | (u32)two_codes(y[2], y[3]) << 16;
#else
      words[word] = two_values(y[0], y[1]);
#endif
    }
    to[4 * part] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// The kernel ---------------------------------------------------------------------------------------------------------

struct Place {
  int row, column;  // of a program's product, in programs along the rows and tiles of weights
};

__device__ __forceinline__ Place place_of(int tile, int tiles_m, int tiles_n, u32 rank) {
  const int first = tile / (GROUP * tiles_n) * GROUP, many = min(GROUP, tiles_m - first);
  const int rest = tile - first * tiles_n;
  return {(first + rest % many) * 2 * ROWS + (int)rank * ROWS, rest / many};
}

// `scale` is the step of x's codes, `weight_step` points to that of the weights in bfloat16, `levels` is one over that
// of out; values have no steps: 1, null and 1.
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1) void gated_product(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const u16* weight_step, void* out,
    int rows, int width, int k, float scale, float levels) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  const u32 stages = ((u32)__cvta_generic_to_shared(memory) + 1023u) & ~1023u;
  const u32 fulls = (u32)__cvta_generic_to_shared(full), empties = (u32)__cvta_generic_to_shared(empty);
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      init_barrier(fulls + 8 * i, 1);
      init_barrier(empties + 8 * i, 4);  // two warp groups in each program of the cluster
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  meet_cluster();
  const int tiles_m = (rows + 2 * ROWS - 1) / (2 * ROWS), tiles_n = width / (COLUMNS / 2);
  const int steps = (k * ITEM + SLICE - 1) / SLICE, tiles = tiles_m * tiles_n, clusters = gridDim.x / 2;
  const int group = threadIdx.x / 128;
  int stage = 0;
  u32 phase = 0;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (int tile = blockIdx.x / 2; tile < tiles; tile += clusters) {
        const Place place = place_of(tile, tiles_m, tiles_n, rank);
        const int weight_row = place.column * COLUMNS + (int)rank * (COLUMNS / 2);
        for (int step = 0; step < steps; step++) {
          wait_for(empties + 8 * stage, phase ^ 1);
          const u32 barrier = fulls + 8 * stage, at = stages + stage * STAGE_BYTES;
          expect_bytes(barrier, STAGE_BYTES);
          load(at, &x, barrier, step * (SLICE / ITEM), place.row);
          load_for_both(at + X_BYTES + rank * HALF_BYTES, &weights, barrier, step * (SLICE / ITEM), weight_row);
          if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
          }
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const u32 thread = threadIdx.x % 128, lane = thread % 32, quarter = lane % 4;
    const bool tells = thread < 2;  // one thread for each program of the cluster
    if (CODED) scale *= __uint_as_float((u32)*weight_step << 16);
    const float half_scale = 0.5f * scale, up_scale = scale * levels;
    float d[128];
    for (int tile = blockIdx.x / 2; tile < tiles; tile += clusters) {
      const Place place = place_of(tile, tiles_m, tiles_n, rank);
      int before = 0;
      for (int step = 0; step < steps; step++) {
        wait_for(fulls + 8 * stage, phase);
        const u32 at = stages + stage * STAGE_BYTES;
        const u64 mine = describe(at + (group - 1) * 64 * SLICE), shared = describe(at + X_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int part = 0; part < 4; part++) multiply(d, mine + 2 * part, shared + 2 * part, step | part);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (step && tells) arrive_at(empties + 8 * before, thread);  // what the stage before held is read
        before = stage;
        if (++stage == STAGES) {
          stage = 0;
          phase ^= 1;
        }
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (tells) arrive_at(empties + 8 * before, thread);
      const int row = place.row + (group - 1) * 64 + thread / 32 * 16 + lane / 4;
      constexpr int BYTES = CODES ? 1 : 2;
#pragma unroll
      for (int second = 0; second < 2; second++) {
        if (row + 8 * second >= rows) continue;
        const u64 start = ((u64)(row + 8 * second) * width + place.column * (COLUMNS / 2)) * BYTES + quarter * 16;
        write_row((uint4*)((unsigned char*)out + start), d, second, half_scale, up_scale);
      }
    }
  }
  meet_cluster();  // neither leaves while the other may still arrive at its barriers
}
