/* A stand-in for NVIDIA's driver: the "GPU's" memory is the host's, at addresses that the processor
 * cannot follow. FAKE_CUDA_FLIP=1 changes the last byte of each copy back to the host. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAR 0x4000000000000000ull

int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "stand-in", (size_t)length);
  return 0;
}
int cuDeviceGetAttribute(int *value, int what, int device) {
  (void)what, (void)device;
  *value = 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  *context = (void *)1;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
  *at = (uint64_t)(uintptr_t)malloc(bytes) ^ FAR;
  return 0;
}
int cuMemFree_v2(uint64_t at) { free((void *)(uintptr_t)(at ^ FAR)); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  memcpy((void *)(uintptr_t)(to ^ FAR), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  memcpy(to, (void *)(uintptr_t)(from ^ FAR), bytes);
  if (getenv("FAKE_CUDA_FLIP") && bytes > 8) ((char *)to)[bytes - 1] += 1;
  return 0;
}
int cuGetErrorString(int code, const char **text) { (void)code; *text = "no error"; return 0; }
