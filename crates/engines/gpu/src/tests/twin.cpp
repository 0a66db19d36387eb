// A driver of CUDA's in memory, for tests: what `cuda/driver.rs` calls, over the kernels as C++, which the test
// puts into this source.
//
// It is as late as it may be. Commands wait in their streams until somebody asks for an event; each question runs
// a few of them, from streams in random order, so that what no event holds together falls apart. Copies
// read and write at that moment. Whatever is not inside memory that was given fails as an illegal address.

// Types of the system's and of the kernels' that have the same names.
#define uint system_uint
#define ulong system_ulong
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>
#undef uint
#undef ulong

// KERNELS

namespace {

using u64 = unsigned long long;
enum { OK = 0, INVALID_VALUE = 1, NO_BINARY = 209, ILLEGAL_ADDRESS = 700, NOT_READY = 600, LOST = 719 };
// Faults, in the order of the test's constants.
enum { IS_LOST, HANGS, IDLES, REFUSES_CUBIN, HAS_NO_DEVICE, FAULTS };

using Token = std::shared_ptr<bool>;
struct Command {
  std::function<void()> run;
  Token waits_for;
};
struct Stream {
  std::deque<Command> commands;
};
struct Event {
  Token happened = std::make_shared<bool>(true);
};
struct Module {
  bool is_text;
};

std::mutex lock;
int faults[FAULTS], failed, contexts, current_device = -1, launches, asked;
u64 random_state = 1;
std::map<u64, u64> device_memory, host_memory;
std::set<Stream *> streams;
std::set<Event *> events;
std::set<Module *> modules;
// Words that were not zero, by the length of memory that was given back: the most of any such.
std::map<u64, u64> left_behind;

u64 next_random() {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return random_state >> 33;
}

bool within(const std::map<u64, u64> &memory, u64 at, u64 bytes) {
  auto behind = memory.upper_bound(at);
  if (behind == memory.begin()) return false;
  auto [start, length] = *--behind;
  return at + bytes <= start + length;
}

bool reachable(u64 at, u64 bytes) { return within(device_memory, at, bytes) || within(host_memory, at, bytes); }

u64 number(const void *pointer) { return reinterpret_cast<u64>(pointer); }
void *pointer(u64 address) { return reinterpret_cast<void *>(address); }

// Runs one command of one stream that has one which does not wait; whether there was one.
bool step() {
  std::vector<Stream *> ready;
  for (Stream *stream : streams) {
    auto &commands = stream->commands;
    while (!commands.empty() && commands.front().waits_for && *commands.front().waits_for) commands.pop_front();
    if (!commands.empty() && !commands.front().waits_for) ready.push_back(stream);
  }
  if (ready.empty()) return false;
  Stream *stream = ready[next_random() % ready.size()];
  auto command = stream->commands.front();
  stream->commands.pop_front();
  command.run();
  return true;
}

int enqueue(void *stream, std::function<void()> run) {
  if (faults[IS_LOST]) return LOST;
  auto it = streams.find(static_cast<Stream *>(stream));
  if (it == streams.end() || current_device < 0) return INVALID_VALUE;
  (*it)->commands.push_back({std::move(run), nullptr});
  return OK;
}

int fail(int code) { return failed = code; }

// What a launch may touch is checked by the plan alone, since the kernel believes it.
bool plan_is_sound(const uint *plan, const uint *arena, const uint *keys, uint groups, uint lanes) {
  for (uint group = 0; group < groups; group++) {
    const uint *bin = plan + BIN_WORDS * group;
    if (!reachable(number(bin), 4 * BIN_WORDS)) return false;
    u64 parts = bin[BIN_PARTS];
    if (parts == 0 || (parts & (parts - 1)) != 0 || parts > 1u << (GHASH_POWERS - 1)) return false;
    if (parts * bin[BIN_JOBS] > lanes || lanes > MOST_LANES) return false;
    for (uint n = 0; n < bin[2]; n++) {
      const uint *job = plan + bin[1] + JOB_WORDS * n;
      if (!reachable(number(job), 4 * JOB_WORDS)) return false;
      u64 bytes = std::max<u64>(job[JOB_AUTHENTICATED], job[JOB_CIPHER_AT] + job[JOB_CIPHER_BYTES]);
      if (!reachable(number(arena + job[JOB_PACKET]), bytes)) return false;
      u64 front = 4 * (byte_of(job[JOB_FRAME], 2) + 1 + byte_of(job[JOB_FRAME], 3));
      u64 trailer = 2 + byte_of(job[JOB_FRAME], 0), end = job[JOB_CIPHER_AT] + job[JOB_CIPHER_BYTES];
      if (FRAMES(bin[BIN_KIND]) && front + trailer > end) return false;
      if (!reachable(number(arena + job[JOB_RESULT]), 4 * (DIGEST_WORDS + 1))) return false;
      if (!reachable(number(keys + KEY_WORDS * job[JOB_KEY]), 4 * KEY_WORDS)) return false;
    }
  }
  return true;
}

template <typename T> T argument(void **arguments, int at) { return *static_cast<T *>(arguments[at]); }

}  // namespace

#define API extern "C" __attribute__((visibility("default")))
#define LOCKED std::lock_guard<std::mutex> guard(lock)

// For the test.
API void twin_set(int fault, int value) { LOCKED; faults[fault] = value; }
API void twin_seed(u64 seed) { LOCKED; random_state = seed; }
API u64 twin_left_behind(u64 bytes) { LOCKED; return left_behind.count(bytes) ? left_behind[bytes] : ~0ull; }
API u64 twin_alive() {
  LOCKED;
  return device_memory.size() + host_memory.size() + streams.size() + events.size() + modules.size() + contexts;
}
API int twin_launches() { LOCKED; return launches; }

API int cuInit(unsigned flags) { return flags == 0 ? OK : INVALID_VALUE; }
API int cuDriverGetVersion(int *version) { return *version = 12090, OK; }
API int cuGetErrorName(int error, const char **name) {
  *name = error == LOST ? "CUDA_ERROR_LAUNCH_FAILED" : error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : nullptr;
  return *name ? OK : INVALID_VALUE;
}
API int cuDeviceGetCount(int *count) { LOCKED; return *count = faults[HAS_NO_DEVICE] ? 0 : 2, OK; }
API int cuDeviceGet(int *device, int index) { return *device = index, index < 2 ? OK : INVALID_VALUE; }
API int cuDeviceGetName(char *name, int bytes, int device) {
  strncpy(name, device == 0 ? "Twin discrete" : "Twin integrated", bytes - 1);
  return OK;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 10: return *value = 32, OK;
    case 18: return *value = device, OK;
    case 75: return *value = device == 0 ? 9 : 8, OK;
    case 76: return *value = device == 0 ? 0 : 7, OK;
    default: return INVALID_VALUE;
  }
}
API int cuDevicePrimaryCtxRetain(void **context, int device) {
  LOCKED;
  contexts++;
  *context = pointer(1 + device);
  return OK;
}
API int cuDevicePrimaryCtxRelease_v2(int) { LOCKED; contexts--; return OK; }
API int cuCtxSetCurrent(void *context) {
  LOCKED;
  if (faults[IS_LOST]) return LOST;
  current_device = int(number(context)) - 1;
  return OK;
}
API int cuModuleLoadData(void **module, const void *image) {
  LOCKED;
  const char *bytes = static_cast<const char *>(image);
  bool is_text = memcmp(bytes, "\177ELF", 4) != 0;
  if (is_text && !strstr(bytes, ".entry testudo_run")) return INVALID_VALUE;
  if (!is_text && faults[REFUSES_CUBIN]) return NO_BINARY;
  *module = *modules.insert(new Module{is_text}).first;
  return OK;
}
API int cuModuleUnload(void *module) { LOCKED; return modules.erase(static_cast<Module *>(module)) ? OK : INVALID_VALUE; }
API int cuModuleGetFunction(void **function, void *, const char *name) {
  void *found = !strcmp(name, "testudo_run")      ? reinterpret_cast<void *>(testudo_run)
                : !strcmp(name, "testudo_expand") ? reinterpret_cast<void *>(testudo_expand)
                : !strcmp(name, "testudo_wipe")   ? reinterpret_cast<void *>(testudo_wipe)
                                                  : nullptr;
  return *function = found, found ? OK : INVALID_VALUE;
}

static int give(std::map<u64, u64> &to, u64 *address, size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  memset(memory, 0xa5, bytes);
  *address = number(memory);
  to[*address] = bytes;
  return OK;
}
static int take_back(std::map<u64, u64> &from, u64 address) {
  auto it = from.find(address);
  if (it == from.end()) return INVALID_VALUE;
  const uint *words = static_cast<const uint *>(pointer(address));
  u64 count = 0;
  for (u64 n = 0; n < it->second / 4; n++) count += words[n] != 0;
  left_behind[it->second] = std::max(left_behind[it->second], count);
  from.erase(it);
  free(pointer(address));
  return OK;
}
API int cuMemAlloc_v2(u64 *address, size_t bytes) { LOCKED; return give(device_memory, address, bytes); }
API int cuMemFree_v2(u64 address) { LOCKED; return take_back(device_memory, address); }
API int cuMemHostAlloc(void **start, size_t bytes, unsigned flags) {
  LOCKED;
  u64 address = 0;
  int status = flags == 3 ? give(host_memory, &address, bytes) : int(INVALID_VALUE);
  return *start = pointer(address), status;
}
API int cuMemFreeHost(void *start) { LOCKED; return take_back(host_memory, number(start)); }
API int cuMemHostGetDevicePointer_v2(u64 *address, void *start, unsigned) { return *address = number(start), OK; }

API int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream) {
  LOCKED;
  if (!within(device_memory, to, bytes) || !within(host_memory, number(from), bytes)) return fail(ILLEGAL_ADDRESS);
  return enqueue(stream, [=] { memcpy(pointer(to), from, bytes); });
}
API int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream) {
  LOCKED;
  if (!within(host_memory, number(to), bytes) || !within(device_memory, from, bytes)) return fail(ILLEGAL_ADDRESS);
  return enqueue(stream, [=] { if (!faults[IDLES]) memcpy(to, pointer(from), bytes); });
}
API int cuMemsetD32Async(u64 at, unsigned value, size_t words, void *stream) {
  LOCKED;
  if (!within(device_memory, at, 4 * words)) return fail(ILLEGAL_ADDRESS);
  return enqueue(stream, [=] { std::fill_n(static_cast<uint *>(pointer(at)), words, value); });
}
API int cuLaunchKernel(void *function, unsigned groups, unsigned, unsigned, unsigned lanes, unsigned, unsigned,
                       unsigned, void *stream, void **arguments, void **) {
  LOCKED;
  if (groups == 0 || (lanes != 1 && lanes % 32 != 0)) return INVALID_VALUE;
  if (function == reinterpret_cast<void *>(testudo_run)) {
    auto plan = argument<const uint *>(arguments, 0);
    auto arena = argument<uint *>(arguments, 1);
    auto keys = argument<const uint *>(arguments, 2);
    launches++;
    return enqueue(stream, [=] {
      if (!plan_is_sound(plan, arena, keys, groups, lanes)) fail(ILLEGAL_ADDRESS);
      else if (!faults[IDLES]) testudo_run_groups(plan, arena, keys, groups, lanes, next_random() % 2);
    });
  }
  auto keys = argument<uint *>(arguments, 0);
  auto slot = argument<uint>(arguments, 1);
  if (!within(device_memory, number(keys + KEY_WORDS * slot), 4 * KEY_WORDS)) return fail(ILLEGAL_ADDRESS);
  if (function == reinterpret_cast<void *>(testudo_wipe)) return enqueue(stream, [=] { testudo_wipe(keys, slot); });
  auto kind = argument<uint>(arguments, 2);
  auto raw = argument<raw_key>(arguments, 3);
  return enqueue(stream, [=] { testudo_expand(keys, slot, kind, raw); });
}

API int cuStreamCreate(void **stream, unsigned) { LOCKED; return *stream = *streams.insert(new Stream).first, OK; }
API int cuStreamDestroy_v2(void *stream) {
  LOCKED;
  auto it = streams.find(static_cast<Stream *>(stream));
  if (it == streams.end() || !(*it)->commands.empty()) return INVALID_VALUE;
  return streams.erase(it), OK;
}
API int cuStreamWaitEvent(void *stream, void *event, unsigned) {
  LOCKED;
  if (faults[IS_LOST]) return LOST;
  static_cast<Stream *>(stream)->commands.push_back({nullptr, static_cast<Event *>(event)->happened});
  return OK;
}
API int cuEventCreate(void **event, unsigned) { LOCKED; return *event = *events.insert(new Event).first, OK; }
API int cuEventDestroy_v2(void *event) { LOCKED; return events.erase(static_cast<Event *>(event)) ? OK : INVALID_VALUE; }
API int cuEventRecord(void *event, void *stream) {
  LOCKED;
  Token token = std::make_shared<bool>(false);
  static_cast<Event *>(event)->happened = token;
  return enqueue(stream, [=] { *token = true; });
}
API int cuEventQuery(void *event) {
  LOCKED;
  if (faults[IS_LOST]) return LOST;
  if (failed) return failed;
  asked++;
  // The more that waits, the more at a time: each key of ten thousand is a command.
  u64 waiting = 0;
  for (Stream *stream : streams) waiting += stream->commands.size();
  for (u64 n = next_random() % (4 + waiting / 32); n > 0 && !faults[HANGS]; n--) step();
  if (failed) return failed;
  return *static_cast<Event *>(event)->happened ? OK : NOT_READY;
}
