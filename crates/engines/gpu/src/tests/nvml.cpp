// NVML with two devices, as far as counters of energy need it.

static bool is_initialised;
static unsigned long long asked[2];

extern "C" int nvmlInit_v2() {
#ifdef NO_DRIVER
    return 9;
#else
    if (is_initialised) return 999;
    is_initialised = true;
    return 0;
#endif
}

extern "C" int nvmlShutdown() {
    if (!is_initialised) __builtin_trap();
    is_initialised = false;
    return 0;
}

extern "C" int nvmlDeviceGetCount_v2(unsigned *count) {
#ifdef NO_DEVICE
    *count = 0;
#else
    *count = 2;
#endif
    return is_initialised ? 0 : 1;
}

extern "C" int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
#ifdef NO_HANDLE
    if (index == 1) return 4;
#endif
    *device = &asked[index];
    return is_initialised && index < 2 ? 0 : 2;
}

#ifndef TOO_OLD
extern "C" int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    unsigned long long index = static_cast<unsigned long long *>(device) - asked;
    if (!is_initialised || index > 1) return 2;
#if defined(UNSUPPORTED)
    if (index == 1) return 3;
#elif defined(LOST)
    return 15;
#elif defined(MAD)
    *millijoules = ~0ull;
    return 0;
#endif
    *millijoules = ++asked[index] * (index == 0 ? 5 : 7);
    return 0;
}
#endif
