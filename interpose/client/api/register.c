/* register.c: registers kernels and variables for the program's constructors. Nothing is sent: that
 * happens at the first use of one of them.
 */
#include "bodies.h"

void **__cudaRegisterFatBinary(void *fatCubin) { return (void **)module_register(fatCubin); }

void __cudaRegisterFatBinaryEnd(void **fatCubinHandle) { (void)fatCubinHandle; }

/* Called at exit, or when a shared object is unloaded. Nothing is sent: the process must not wait
 * here. */
void __cudaUnregisterFatBinary(void **fatCubinHandle)
{
	symbols_end((const struct module *)fatCubinHandle);
}

void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
			    const char *deviceName, int thread_limit, uint3 *tid, uint3 *bid,
			    dim3 *bDim, dim3 *gDim, int *wSize)
{
	(void)deviceFun, (void)thread_limit, (void)tid, (void)bid, (void)bDim, (void)gDim,
		(void)wSize;
	struct module *m = (struct module *)fatCubinHandle;
	struct function *f = m ? function_register(m, deviceName, hostFun) : NULL;
	if (f)
		symbol_add(hostFun, m, deviceName, f);
}

void __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress,
		       const char *deviceName, int ext, size_t size, int constant, int global)
{
	(void)deviceAddress, (void)ext, (void)size, (void)constant, (void)global;
	if (fatCubinHandle)
		symbol_add(hostVar, (struct module *)fatCubinHandle, deviceName, NULL);
}

void __cudaRegisterManagedVar(void **fatCubinHandle, void **hostVarPtrAddress, char *deviceAddress,
			      const char *deviceName, int ext, size_t size, int constant,
			      int global)
{
	(void)deviceAddress, (void)ext, (void)size, (void)constant, (void)global;
	if (fatCubinHandle)
		managed_variable_add((struct module *)fatCubinHandle, hostVarPtrAddress,
				     deviceName);
}

/* Called before the program first reads the address of one of the module's managed variables. */
char __cudaInitModule(void **fatCubinHandle)
{
	context_of_runtime();
	managed_variables_fill((const struct module *)fatCubinHandle);
	return 1;
}
