// linking.cu: PTX that is linked at run time by the driver: a kernel and the function that it calls
// come as two texts, one of them from a file. Prints what the kernel computed, and the errors of
// what cannot be linked.
#include <cstdio>
#include <cuda.h>

static const char caller[] = R"(.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b32 result) twice_and(.param .b32 x, .param .b32 more);
.global .u32 own = 1000;  // the other text has another variable of this name
.visible .entry apply(.param .u64 at)
{
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [at];
    ld.global.u32 %r1, [%rd1];
    {
        .param .b32 x; .param .b32 more; .param .b32 result;
        st.param.b32 [x], %r1;
        st.param.b32 [more], 5;
        call (result), twice_and, (x, more);
        ld.param.b32 %r2, [result];
    }
    ld.global.u32 %r1, [own];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [%rd1], %r2;
    ret;
}
)";
static const char callee[] = R"(.version 7.5
.target sm_70
.address_size 64
.global .u32 own = 5;
.visible .func (.param .b32 result) twice_and(.param .b32 x, .param .b32 more)
{
    .reg .b32 %r<5>;
    ld.param.b32 %r1, [x];
    ld.param.b32 %r2, [more];
    ld.global.u32 %r4, [own];
    add.u32 %r2, %r2, %r4;
    mad.lo.u32 %r3, %r1, 2, %r2;
    st.param.b32 [result], %r3;
    ret;
}
)";

static void check(CUresult got, const char *what)
{
    if (got != CUDA_SUCCESS)
        printf("%s: %d\n", what, got);
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CUlinkState link;
    CUmodule module;
    CUfunction apply;
    CUdeviceptr at;
    void *image;
    size_t bytes;
    char info[64] = "info", log[64] = "log";  // programs print both, whatever happened
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log, info, (void *)sizeof info};
    int value = 18;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");

    FILE *file = fopen(argv[1], "w");
    fputs(callee, file);
    fclose(file);
    check(cuLinkCreate(4, options, values, &link), "cuLinkCreate");
    check(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)caller, sizeof caller, "caller", 0, 0, 0),
          "cuLinkAddData");
    check(cuLinkAddFile(link, CU_JIT_INPUT_PTX, argv[1], 0, 0, 0), "cuLinkAddFile");
    check(cuLinkComplete(link, &image, &bytes), "cuLinkComplete");
    check(cuModuleLoadData(&module, image), "cuModuleLoadData");
    check(cuLinkDestroy(link), "cuLinkDestroy");
    check(cuModuleGetFunction(&apply, module, "apply"), "cuModuleGetFunction");
    check(cuMemAlloc(&at, sizeof value), "cuMemAlloc");
    check(cuMemcpyHtoD(at, &value, sizeof value), "cuMemcpyHtoD");
    void *arguments[] = {&at};
    check(cuLaunchKernel(apply, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0), "cuLaunchKernel");
    check(cuMemcpyDtoH(&value, at, sizeof value), "cuMemcpyDtoH");
    printf("%d, %zu bytes of errors: %s%s\n", value, (size_t)values[1], log, info);

    check(cuLinkDestroy(link), "again");
    check(cuLinkCreate(0, 0, 0, &link), "cuLinkCreate");
    check(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/no/file", 0, 0, 0), "no file");
    check(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)"text", 4, "text", 0, 0, 0), "no PTX");
    check(cuLinkAddData(link, CU_JIT_INPUT_LIBRARY, (void *)caller, sizeof caller, "a", 0, 0, 0),
          "a library");
    check(cuLinkComplete(link, &image, &bytes), "nothing");
    check(cuLinkDestroy(link), "cuLinkDestroy");
    return 0;
}
